// CUDA rows of mhc.h.

#pragma once

#include "dsv4/ops/mhc/mhc.h"

namespace dsv4 {

void hc_pre_cuda(const Context& context, const HcPreArgs& args);
void hc_post_cuda(const Context& context, const HcPostArgs& args);
void hc_head_cuda(const Context& context, const HcHeadArgs& args);

}  // namespace dsv4
