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

// Many tokens whose bits must not depend on the batch (many.cu): both products of the shared expert
// and the gate's by gemm/sm90/large_m. quantized: x as w1 and w3 take it; down: of stored codes
bool takes_many(const Context& context, const MoeArgs& args, const Intermediates& temporaries);
void run_many_inputs(const Context& context, const MoeArgs& args,
                     const gemm::Activations& quantized, const Intermediates& temporaries);
void run_many_down(const Context& context, const gemm::Product& down);

}  // namespace dsv4::moe_kernel::sm90_few
