// Weights for benchmarks: views of any format over one GiB of bytes that no cache holds.
//
// Every byte is s0111xxx with random s and x, which is a moderate, normal number in every format
// (e4m3, e2m1 pairs, both scales, the upper byte of f16, bf16 and f32): timing meets neither NaN
// nor subnormals. Successive matrices lie one after the other and wrap around, so that a benchmark
// that takes a new one per iteration reads memory, not cache.

#pragma once

#include <cstdint>

#include "dsv4/formats/weight.h"

namespace dsv4::bench {

class WeightPool {
 public:
  // The next matrix. Larger ones than the pool are refused. `bits`: of kKbit, with an NF codebook.
  WeightView next(WeightFormat format, int64_t n, int64_t k, int bits = 4);

 private:
  ConstTensorView take(DType dtype, int64_t rows, int64_t columns);

  int64_t offset_ = 0;
};

}  // namespace dsv4::bench
