// CUDA row of router.h.

#pragma once

#include "dsv4/ops/router/router.h"

namespace dsv4 {

const char* router_cuda_reject(const Context& context, const RouterArgs& args);
void router_cuda(const Context& context, const RouterArgs& args);

}  // namespace dsv4
