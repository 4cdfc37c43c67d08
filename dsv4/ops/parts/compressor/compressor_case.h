// fp64 oracle of compressor.h, and random arguments for its tests and benchmarks.

#pragma once

#include <vector>

#include "dsv4/ops/parts/compressor/compressor.h"
#include "tests/harness/fill.h"

namespace dsv4 {

struct CompressorWant {
  std::vector<double> out;    // [entries, d_c]
  std::vector<double> state;  // [slots, layout.floats()] after the call
};

// Token by token, as in docs/spec/dsv4.md 5.5 for decoding. Call before the implementation: the
// state is an input.
CompressorWant compressor_oracle(const CompressorArgs& args);

}  // namespace dsv4

namespace dsv4::test {

using Ints = std::vector<int64_t>;

// Values of the sequences: in another order they would not fit the tokens.
template <class Memory>
TensorView int_input(Memory& memory, const Ints& values) {
  const TensorView view = memory.input(DType::kI32, {static_cast<int64_t>(values.size())});
  memory.keep_order(view);
  for (size_t i = 0; i < values.size(); ++i)
    view.as<int32_t>()[i] = static_cast<int32_t>(values[i]);
  return view;
}

inline Ints prefix_sum(const Ints& counts) {
  Ints sums{0};
  for (const int64_t n : counts) sums.push_back(sums.back() + n);
  return sums;
}

// Sequence i appends counts[i] tokens at position start[i] and uses slot n - 1 - i, or none if it
// has no tokens. The states are full of numbers, which a sequence that starts at 0 does not read.
// `spare`: rows of tokens and of the output that no sequence fills.
template <class Memory, class Random>
CompressorArgs random_compressor(Memory& memory, Random& random, const StateLayout& layout,
                                 const Ints& start, const Ints& counts, DType out_dtype,
                                 int64_t spare = 0) {
  const auto b = static_cast<int64_t>(start.size()), tokens = prefix_sum(counts).back() + spare;
  Ints slots;
  int64_t entries = spare;
  const TensorView state = memory.inout(DType::kF32, {b, layout.floats()});
  fill_normal(state, random);
  for (int64_t i = 0; i < b; ++i) {
    const auto at = static_cast<size_t>(i);
    slots.push_back(counts[at] > 0 ? b - 1 - i : -1);
    entries += num_closed_entries(start[at], counts[at], layout.ratio);
  }
  const TensorView kv = memory.input(DType::kF32, {tokens, layout.columns()});
  const TensorView gate = memory.input(DType::kF32, {tokens, layout.columns()});
  const TensorView ape = memory.input(DType::kF32, {layout.ratio, layout.columns()});
  fill_normal(kv, random);
  fill_normal(gate, random, 3.0);
  fill_normal(ape, random);
  return {.layout = layout,
          .kv = kv,
          .gate = gate,
          .ape = ape,
          .cu_tokens = int_input(memory, prefix_sum(counts)),
          .start = int_input(memory, start),
          .state_slots = int_input(memory, slots),
          .state = state,
          .out = memory.output(out_dtype, {entries, layout.width})};
}

}  // namespace dsv4::test
