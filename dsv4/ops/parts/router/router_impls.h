// The implementations of router.h. The CUDA ones exist in CUDA builds only.

#pragma once

#include "dsv4/ops/parts/router/router.h"

namespace dsv4 {

void router_cpu(const Context& context, const RouterArgs& args);

const char* router_cuda_reject(const Context& context, const RouterArgs& args);
void router_cuda(const Context& context, const RouterArgs& args);

}  // namespace dsv4
