// The implementations of moe.h, for its table.

#pragma once

#include "dsv4/ops/model/moe/moe.h"

namespace dsv4 {

void moe_parts(const Context& context, const MoeArgs& args);
// In host memory: only devices read kernel images.
const char* moe_host_parts_reject(const Context& context, const MoeArgs& args);

// Up to 64 tokens under kOfficial, a shared expert in FP8 and a gate in BF16, on Hopper: two
// launches (few_gemm) before the routed experts. Up to 8 tokens with a shared expert in k4-e4m3 or
// k5-e4m3.
const char* moe_sm90_few_reject(const Context& context, const MoeArgs& args);
void moe_sm90_few(const Context& context, const MoeArgs& args);

// Of these calls, those of one token whose routed experts are read by experts `sm90_few_e4m3`:
// three launches for the whole block, the same bits. Two tokens, where sm90_few is as fast, only
// when forced.
const char* moe_sm90_fused_reject(const Context& context, const MoeArgs& args);
void moe_sm90_fused(const Context& context, const MoeArgs& args);

}  // namespace dsv4
