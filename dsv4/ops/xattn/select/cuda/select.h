// The CUDA implementation of xattn_select.h: registers only, no sort, no host synchronization.

#pragma once

#include "dsv4/ops/xattn/select/xattn_select.h"

namespace dsv4::xattn_select_kernel::cuda {

const char* reject(const Context& context, const XattnSelectArgs& args);
void run(const Context& context, const XattnSelectArgs& args);

}  // namespace dsv4::xattn_select_kernel::cuda
