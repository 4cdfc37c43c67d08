// The implementations of rope.h. The CUDA ones exist in CUDA builds only.

#pragma once

#include "dsv4/ops/parts/rope/rope.h"

namespace dsv4 {

void rope_cpu(const Context& context, const RopeArgs& args);

void rope_cuda(const Context& context, const RopeArgs& args);

}  // namespace dsv4
