#include "dsv4/ops/kbit/kbit_weight.h"

#include <bit>

#include "dsv4/base/error.h"
#include "dsv4/formats/kbit.h"
#include "dsv4/ops/dequantize/dequantize.h"
#include "dsv4/ops/linear/linear.h"

namespace dsv4 {

WeightView KbitWeight::view() const {
  Dim n("n"), blocks("k/32"), values("2^K");
  expect("scales", scales, {DType::kU8}, {n, blocks});
  expect("codebook", codebook, {DType::kF32}, {values});
  const int bits = std::countr_zero(static_cast<uint64_t>(*values));
  DSV4_CHECK(is_kbit(bits) && *values == int64_t{1} << bits,
             "codebook: want 4, 8, 16 or 32 values, got {}", *values);
  WeightView weight{.format = WeightFormat::kKbit,
                    .n = *n,
                    .k = *blocks * kKbitBlock,
                    .data = planes,
                    .scale = scales,
                    .scale2 = scale2,
                    .bits = bits,
                    .codebook = codebook};
  if (planes.rank == 3) {
    expect("planes", planes, {DType::kI32}, {n, blocks, bits});
    weight.data = planes.reshape({*n, *blocks * bits});
  }
  check("planes", weight);
  return weight;
}

void dequantize_kbit(const KbitWeight& weight, const TensorView& out) {
  dequantize({}, {.weight = weight.view(), .out = out});
}

void kbit_linear(const KbitWeight& weight, const ConstTensorView& x, const TensorView& out) {
  linear({}, {.x = x, .weight = weight.view(), .out = out});
}

}  // namespace dsv4
