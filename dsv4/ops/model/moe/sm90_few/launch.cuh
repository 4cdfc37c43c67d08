// What sm90_fused shares with sm90_few: the calls that it takes, and the first launch.

#pragma once

#include "dsv4/ops/model/moe/sm90_few/call.cuh"
#include "dsv4/ops/op.h"

namespace dsv4::moe_kernel::sm90_few {

const char* reject(const Context& context, const MoeArgs& args);

// The boundary, if there is one; temporaries.logits and temporaries.hidden.
void run_inputs(const Context& context, const MoeArgs& args, const Intermediates& temporaries);

}  // namespace dsv4::moe_kernel::sm90_few
