// The implementations of attention_out.h, for its table.

#pragma once

#include "dsv4/ops/model/attention_out/attention_out.h"

namespace dsv4 {

void attention_out_parts(const Context& context, const AttentionOutArgs& args);

// 5 to 8 tokens under kOfficial, FP8 weights, on Hopper: two launches (few_gemm).
const char* attention_out_sm90_few_reject(const Context& context, const AttentionOutArgs& args);
void attention_out_sm90_few(const Context& context, const AttentionOutArgs& args);

}  // namespace dsv4
