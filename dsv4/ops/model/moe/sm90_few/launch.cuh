// The first launch of sm90_few, which sm90_fused shares.

#pragma once

#include "dsv4/ops/model/moe/sm90_few/call.cuh"
#include "dsv4/ops/op.h"

namespace dsv4::moe_kernel::sm90_few {

// The boundary, if there is one; middle.logits and middle.hidden.
void run_inputs(const Context& context, const MoeArgs& args, const Middle& middle);

}  // namespace dsv4::moe_kernel::sm90_few
