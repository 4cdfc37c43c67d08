// CPU rows of mhc.h.

#pragma once

#include "dsv4/ops/mhc/mhc.h"

namespace dsv4 {

inline constexpr int64_t kMaxStreams = 8;

void hc_pre_cpu(const Context& context, const HcPreArgs& args);
void hc_post_cpu(const Context& context, const HcPostArgs& args);
void hc_head_cpu(const Context& context, const HcHeadArgs& args);

}  // namespace dsv4
