// What the test, the emulated test and the benchmark of row_errors.h share: the builder of
// arguments.

#pragma once

#include <bit>
#include "dsv4/base/rng.h"
#include "dsv4/ops/kbit/row_errors.h"

namespace dsv4 {

namespace test {

// x is noise of many magnitudes, y the same numbers with 4 bits of mantissa.
// Memory: test::Arena or bench::Arena.
template <class Memory>
RowErrorsArgs random_row_errors(Memory& memory, Rng& rng, int64_t n, int64_t k, bool importance) {
  const TensorView x = memory.input(DType::kF32, {n, k}), y = memory.input(DType::kF32, {n, k});
  for (int64_t i = 0; i < x.numel(); ++i) {
    const double size = rng.below(16) == 0 ? 1e-6 : 0.05;
    x.as<float>()[i] = static_cast<float>(size * rng.normal());
    const uint32_t bits = std::bit_cast<uint32_t>(x.as<float>()[i]);
    y.as<float>()[i] = std::bit_cast<float>(bits & 0xfff80000u);
  }
  RowErrorsArgs args{.x = x, .y = y, .sums = memory.output(DType::kF64, {n, kErrorSums})};
  if (importance) {
    const TensorView h = memory.input(DType::kF32, {k});
    for (int64_t i = 0; i < k; ++i) h.as<float>()[i] = static_cast<float>(rng.uniform(0, 3));
    args.importance = h;
  }
  return args;
}

}  // namespace test
}  // namespace dsv4
