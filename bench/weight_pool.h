// Weights for benchmarks: views of any format over one GiB of bytes, more than any cache.
//
// Every byte is s0111xxx with random s and x, which is a moderate, normal number in every format
// (e4m3, e2m1 pairs, all scales, the upper byte of f16, bf16 and f32): so inputs contain neither
// NaN nor subnormals. Successive matrices are adjacent and wrap around, so that a benchmark that
// takes a new one per iteration reads memory instead of cache.

#pragma once

#include <cstdint>

#include "dsv4/formats/weight.h"

namespace dsv4::bench {

class WeightPool {
 public:
  // The next matrix. Throws when it is larger than the pool. bits: K of a k-bit weight
  WeightView next(WeightFormat format, int64_t n, int64_t k, int bits = 0);
  // [bytes] U8, for other layouts.
  ConstTensorView next_bytes(int64_t bytes) { return take(DType::kU8, 1, bytes).reshape({bytes}); }

 private:
  ConstTensorView take(DType dtype, int64_t rows, int64_t columns);

  int64_t offset_ = 0;
};

}  // namespace dsv4::bench
