// fp64 oracle of attention_in.h. Linked by tests and benchmarks only.

#pragma once

#include <vector>

#include "dsv4/ops/model/attention_in/attention_in.h"

namespace dsv4 {

// For args without a boundary. Call before the op, which updates states in place. Rows are the
// values that are read back from the pools, without those of negative ids.
struct AttentionInWant {
  std::vector<double> q;                       // [t, h, d]
  std::vector<double> window, entries, keys;   // [rows that are written, width]
  std::vector<double> state, index_state;      // of the whole pools
  std::vector<double> index_q, index_weights;  // [t, index_heads, index_dim], [t, index_heads]
};

AttentionInWant attention_in_oracle(const Context& context, const AttentionInArgs& args);

}  // namespace dsv4
