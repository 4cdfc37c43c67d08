// CUDA row of rope.h.

#pragma once

#include "dsv4/ops/rope/rope.h"

namespace dsv4 {

void rope_cuda(const Context& context, const RopeArgs& args);

}  // namespace dsv4
