// The implementations of norm.h. The CUDA ones exist in CUDA builds only.

#pragma once

#include "dsv4/ops/parts/norm/norm.h"

namespace dsv4 {

void rms_norm_cpu(const Context& context, const RmsNormArgs& args);
void head_norm_cpu(const Context& context, const HeadNormArgs& args);

void rms_norm_cuda(const Context& context, const RmsNormArgs& args);
void head_norm_cuda(const Context& context, const HeadNormArgs& args);

}  // namespace dsv4
