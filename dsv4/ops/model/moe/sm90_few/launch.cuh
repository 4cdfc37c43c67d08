// What sm90_fused and the first part of moe (moe_hidden.h) share with sm90_few: the calls that it
// takes, and the first launch.

#pragma once

#include "dsv4/ops/model/moe/sm90_few/call.cuh"
#include "dsv4/ops/op.h"

namespace dsv4::moe_kernel::sm90_few {

const char* reject(const Context& context, const MoeArgs& args);
// Why the first launch does not take the call. Of the shared expert it does not read w2.
const char* reject_inputs(const Context& context, const MoeArgs& args);

// The boundary, if there is one; temporaries.logits and temporaries.hidden.
void run_inputs(const Context& context, const MoeArgs& args, const Intermediates& temporaries);

}  // namespace dsv4::moe_kernel::sm90_few
