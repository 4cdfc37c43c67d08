// The implementations of moe.h, for its table.

#pragma once

#include "dsv4/ops/moe/moe.h"

namespace dsv4 {

void moe_parts(const Context& context, const MoeArgs& args);

}  // namespace dsv4
