// The implementations of mhc.h. The CUDA ones exist in CUDA builds only.

#pragma once

#include "dsv4/ops/parts/mhc/mhc.h"

namespace dsv4 {

// Streams that the implementations hold in registers; mhc.cc checks it.
inline constexpr int kMaxStreams = 8;

void hc_pre_cpu(const Context& context, const HcPreArgs& args);
void hc_post_cpu(const Context& context, const HcPostArgs& args);
void hc_head_cpu(const Context& context, const HcHeadArgs& args);
HostBytes hc_pre_cpu_bytes(const HcPreArgs& args);
HostBytes hc_head_cpu_bytes(const HcHeadArgs& args);

void hc_pre_cuda(const Context& context, const HcPreArgs& args);
void hc_post_cuda(const Context& context, const HcPostArgs& args);
void hc_head_cuda(const Context& context, const HcHeadArgs& args);

}  // namespace dsv4
