// The implementations of attention_in.h, for its table.

#pragma once

#include "dsv4/ops/model/attention_in/attention_in.h"

namespace dsv4 {

void attention_in_parts(const Context& context, const AttentionInArgs& args);

// Up to 32 tokens under kOfficial on Hopper: FP8 weights of queries and keys, BF16 weights of
// compressors, rows of the released models. Up to 8 tokens with k4-e4m3 or k5-e4m3 for FP8.
const char* attention_in_sm90_few_reject(const Context& context, const AttentionInArgs& args);
void attention_in_sm90_few(const Context& context, const AttentionInArgs& args);

}  // namespace dsv4
