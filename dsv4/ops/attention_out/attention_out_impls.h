// The implementations of attention_out.h, for its table.

#pragma once

#include "dsv4/ops/attention_out/attention_out.h"

namespace dsv4 {

void attention_out_parts(const Context& context, const AttentionOutArgs& args);

}  // namespace dsv4
