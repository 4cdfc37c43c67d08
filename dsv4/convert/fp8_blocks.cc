#include "dsv4/convert/fp8_blocks.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "dsv4/base/error.h"
#include "dsv4/cpu/parallel.h"
#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/float16.h"
#include "dsv4/formats/quant_group.h"
#include "dsv4/formats/weight.h"

namespace dsv4 {
namespace {

constexpr int64_t kBlock = kFp8BlockSize;

void expect_finite(const ConstTensorView& x) {
  for (int64_t row = 0; row < x.dim(0); ++row) {
    for (int64_t column = 0; column < x.dim(1); ++column) {
      const float value = x.row<float>(row)[column];
      if (!std::isfinite(value))
        fail(ErrorCode::kBadInput, "row {}, column {} is {}", row, column, value);
    }
  }
}

uint8_t block_scale(float largest) {
  if (largest == 0) return 127;
  return std::max<uint8_t>(pow2ceil_ue8m0(largest / 448.f), 1);
}

// Quantizes one block; false when it holds a value that is not finite.
bool quantize_block(const QuantizeFp8Args& a, int64_t block_row, int64_t block_column) {
  const int64_t first_row = block_row * kBlock, last_row = std::min(first_row + kBlock, a.x.dim(0));
  const int64_t first = block_column * kBlock;
  const auto width = static_cast<int>(std::min(kBlock, a.x.dim(1) - first));
  float largest = 0;
  bool finite = true;
  for (int64_t row = first_row; row < last_row; ++row) {
    const float* x = a.x.row<float>(row) + first;
    for (int i = 0; i < width; ++i) finite = finite && std::isfinite(x[i]);
    largest = std::max(largest, absmax(x, width));
  }
  if (!finite) return false;
  const uint8_t scale = block_scale(largest);
  const float inverse = inverse_scale(scale);
  a.scales.row<uint8_t>(block_row)[block_column] = scale;
  for (int64_t row = first_row; row < last_row; ++row) {
    const float* x = a.x.row<float>(row) + first;
    uint8_t* codes = a.codes.row<uint8_t>(row) + first;
    for (int i = 0; i < width; ++i) codes[i] = f32_to_e4m3(x[i] * inverse);
  }
  return true;
}

}  // namespace

void quantize_fp8_blocks(const QuantizeFp8Args& args) {
  Dim n("n"), k("k");
  expect("x", args.x, {DType::kF32}, {n, k});
  expect("codes", args.codes, {DType::kE4M3}, {n, k});
  const int64_t rows = ceil_div(*n, kBlock), columns = ceil_div(*k, kBlock);
  expect("scales", args.scales, {DType::kE8M0}, {rows, columns});
  std::atomic<bool> finite = true;
#pragma omp parallel for schedule(static) if (cpu::worth_sharing(args.x.numel()))
  for (int64_t block = 0; block < rows * columns; ++block) {
    if (!quantize_block(args, block / columns, block % columns)) finite = false;
  }
  if (!finite) expect_finite(args.x);
}

void round_rows_to_bf16(const ConstTensorView& x, const TensorView& out) {
  Dim n("n"), k("k");
  expect("x", x, {DType::kF32}, {n, k});
  expect("out", out, {DType::kBF16}, {n, k});
  std::atomic<bool> finite = true;
#pragma omp parallel for schedule(static) if (cpu::worth_sharing(x.numel()))
  for (int64_t row = 0; row < *n; ++row) {
    for (int64_t i = 0; i < *k; ++i) {
      const uint16_t code = f32_to_bf16(x.row<float>(row)[i]);
      if ((code & 0x7f80u) == 0x7f80u) finite = false;
      out.row<uint16_t>(row)[i] = code;
    }
  }
  if (finite) return;
  expect_finite(x);
  fail(ErrorCode::kBadInput, "a value exceeds the range of bf16");
}

}  // namespace dsv4
