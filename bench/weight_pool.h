// Weights for benchmarks: views of any format over one GiB of bytes that no cache holds.
//
// Every byte is s0111xxx with random s and x, which is a moderate, normal number in every format
// (e4m3, e2m1 pairs, all scales, the upper byte of f16, bf16 and f32): timing meets neither NaN
// nor subnormals. Successive matrices lie one after the other and wrap around, so that a benchmark
// that takes a new one per iteration reads memory, not cache.

#pragma once

#include <cstdint>

#include "dsv4/formats/weight.h"

namespace dsv4::bench {

class WeightPool {
 public:
  // The next matrix. Larger ones than the pool are refused. bits: K of a k-bit weight
  WeightView next(WeightFormat format, int64_t n, int64_t k, int bits = 0);

 private:
  ConstTensorView take(DType dtype, int64_t rows, int64_t columns);

  int64_t offset_ = 0;
};

}  // namespace dsv4::bench
