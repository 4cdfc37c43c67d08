// fp64 oracle of rope.h, and random arguments for its tests and benchmarks.

#pragma once

#include <algorithm>
#include <vector>

#include "dsv4/ops/parts/rope/rope.h"
#include "tests/harness/fill.h"

namespace dsv4 {

// [t, h, d], from the current values of args.x (contiguous); the op writes in place, so call this
// first.
std::vector<double> rope_oracle(const RopeArgs& args);

}  // namespace dsv4

namespace dsv4::test {

struct RopeShape {
  int64_t t = 1, h = 1, d = 64, pairs = 32;
  DType dtype = DType::kF32;
  bool inverse = false;
  double base = 10000;
  YarnParams yarn{};
  int64_t first = 0, last = 2'000'000;  // positions
};

template <class Memory, class Random>
RopeArgs random_rope(Memory& memory, Random& random, const RopeShape& shape) {
  const TensorView x = memory.inout(shape.dtype, {shape.t, shape.h, shape.d});
  const TensorView positions = memory.input(DType::kI32, {shape.t});
  const TensorView freqs = memory.input(DType::kF32, {shape.pairs});
  fill_normal(x, random, 2.0);
  fill_ints(positions, random, shape.first, shape.last);
  const std::vector<float> table =
      rope_frequencies(static_cast<int>(2 * shape.pairs), shape.base, shape.yarn);
  std::copy(table.begin(), table.end(), freqs.template as<float>());
  return {.x = x, .positions = positions, .freqs = freqs, .inverse = shape.inverse};
}

}  // namespace dsv4::test
