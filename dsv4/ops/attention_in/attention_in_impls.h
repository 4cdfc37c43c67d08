// The implementations of attention_in.h, for its table.

#pragma once

#include "dsv4/ops/attention_in/attention_in.h"

namespace dsv4 {

void attention_in_parts(const Context& context, const AttentionInArgs& args);

}  // namespace dsv4
