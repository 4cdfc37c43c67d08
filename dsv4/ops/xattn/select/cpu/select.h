// The CPU implementation of xattn_select.h.

#pragma once

#include "dsv4/ops/xattn/select/xattn_select.h"

namespace dsv4::xattn_select_kernel::cpu {

void run(const Context& context, const XattnSelectArgs& args);

}  // namespace dsv4::xattn_select_kernel::cpu
