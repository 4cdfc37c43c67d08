// CUDA row of router.h.

#pragma once

#include "dsv4/ops/router/router.h"

namespace dsv4 {

void router_cuda(const Context& context, const RouterArgs& args);

}  // namespace dsv4
