// fp64 oracle of compressor.h. Linked by tests and benchmarks only.

#pragma once

#include <vector>

#include "dsv4/ops/parts/compressor/compressor.h"

namespace dsv4 {

struct CompressorWant {
  std::vector<double> out;    // [entries, d_c]
  std::vector<double> state;  // [slots, layout.floats()] after the call
};

// Token by token, as in docs/spec/dsv4.md 5.5 for decoding. Call before the implementation: the
// state is an input.
CompressorWant compressor_oracle(const CompressorArgs& args);

}  // namespace dsv4
