#include "dsv4/ops/kbit/quantize_kbit.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/cpu/parallel.h"
#include "dsv4/cpu/rows.h"
#include "dsv4/cpu/vec.h"
#include "dsv4/ops/kbit/quantize_kbit_kernel.h"

namespace dsv4 {
namespace {

using kbit_kernel::Quantizer;

// Columns that one thread processes at a time, because flattened tensors are one long row.
constexpr int64_t kSegment = 2048;
static_assert(kSegment % kKbitBlock == 0);

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

// The importance of a block's elements relative to the largest, so that no sum overflows. If all
// are zero, all columns get the same importance. Padding has importance 0. importance: [k] ->
// [padded]
std::vector<float> block_weights(const ConstTensorView& importance) {
  const int64_t k = importance.dim(0);
  std::vector<float> weights(static_cast<size_t>(align_up(k, kKbitBlock)));
  dsv4::cpu::load(importance, 0, k, weights.data());
  for (int64_t begin = 0; begin < k; begin += kKbitBlock) {
    float* w = weights.data() + begin;
    const int64_t count = std::min<int64_t>(kKbitBlock, k - begin);
    for (int64_t i = 0; i < count; ++i) {
      if (!std::isfinite(w[i]) || w[i] < 0)
        fail(ErrorCode::kBadInput, "importance of column {} is {}: want a finite number from 0 on",
             begin + i, w[i]);
    }
    const float most = *std::max_element(w, w + count);
    for (int64_t i = 0; i < count; ++i) w[i] = most > 0 ? w[i] / most : 1.f;
  }
  return weights;
}

// The smallest power of two that brings `magnitude` within the limit.
float fitting_tensor_scale(float magnitude, float limit) {
  return std::exp2(std::ceil(std::log2(magnitude / limit)));
}

[[noreturn]] void report(const QuantizeKbitArgs& args, const Quantizer& quantizer, int64_t row,
                         int64_t block) {
  const int64_t begin = block * kKbitBlock,
                count = std::min<int64_t>(kKbitBlock, args.x.dim(1) - begin);
  float x[kKbitBlock], worst = 0;
  dsv4::cpu::load(args.x, row * args.x.row_stride() + begin, count, x);
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(x[i]))
      fail(ErrorCode::kBadInput, "x[{}, {}] is {} (row {}, block {}): want finite values", row,
           begin + i, x[i], row, block);
    if (std::abs(x[i]) > std::abs(worst)) worst = x[i];
  }
  const float largest = largest_magnitude(args.x);
  fail(ErrorCode::kBadInput,
       "row {}, block {}: value {} / tensor_scale {} is beyond the E4M4 range, +-{} here; use a "
       "tensor_scale of {} or more",
       row, block, worst, args.tensor_scale, quantizer.limit,
       fitting_tensor_scale(largest, quantizer.limit));
}

}  // namespace

namespace quantize_kbit_kernel::cpu {

void run(const Context&, const QuantizeKbitArgs& args) {
  const int64_t rows = args.x.dim(0), k = args.x.dim(1), bits = args.codebook.bits;
  const int64_t segments = ceil_div(k, kSegment);
  const Quantizer quantizer(args.codebook, args.choice);
  const std::vector<float> weights =
      args.importance.empty() ? std::vector<float>{} : block_weights(args.importance);
  int64_t bad = kNone;  // row * blocks + block of the first block that cannot be written
  const int64_t operations_each = args.choice == ScaleChoice::kReference ? 50 : 500;
#pragma omp parallel if (dsv4::cpu::worth_sharing(operations_each * rows * k))
  {
    std::array<float, kSegment> z;
#pragma omp for schedule(dynamic) reduction(min : bad)
    for (int64_t unit = 0; unit < rows * segments; ++unit) {
      const int64_t row = unit / segments, begin = unit % segments * kSegment;
      const int64_t count = std::min(kSegment, k - begin), block = begin / kKbitBlock;
      dsv4::cpu::load(args.x, row * args.x.row_stride() + begin, count, z.data());
      if (args.tensor_scale != 1.f)
        dsv4::cpu::scale(1 / args.tensor_scale, z.data(), z.data(), count);
      std::fill(z.begin() + count, z.begin() + align_up(count, kKbitBlock), 0.f);
      const int64_t stopped = kbit_kernel::quantize_row(
          quantizer, z.data(), count, weights.empty() ? nullptr : weights.data() + begin,
          args.planes.row<uint32_t>(row) + block * bits, args.scales.row<uint8_t>(row) + block);
      if (stopped >= 0) bad = std::min(bad, row * args.scales.dim(1) + block + stopped);
    }
  }
  if (bad != kNone) report(args, quantizer, bad / args.scales.dim(1), bad % args.scales.dim(1));
}

}  // namespace quantize_kbit_kernel::cpu

float largest_magnitude(const ConstTensorView& x) {
  Dim n("n"), k("k");
  expect("x", x, {DType::kF32, DType::kBF16, DType::kF16}, {n, k});
  uint32_t most = 0;  // as bits, which order like the magnitudes, with NaN above infinity
  const int64_t segments = ceil_div(*k, kSegment);
#pragma omp parallel if (dsv4::cpu::worth_sharing(2 * *n * *k))
  {
    std::array<float, kSegment> part;
#pragma omp for reduction(max : most)
    for (int64_t unit = 0; unit < *n * segments; ++unit) {
      const int64_t begin = unit % segments * kSegment, count = std::min(kSegment, *k - begin);
      dsv4::cpu::load(x, unit / segments * x.row_stride() + begin, count, part.data());
      for (int64_t i = 0; i < count; ++i) {
        const float v = part[static_cast<size_t>(i)];
        most = std::max(most, std::bit_cast<uint32_t>(v) & 0x7fffffffu);
      }
    }
  }
  const auto largest = std::bit_cast<float>(most);
  if (!std::isfinite(largest)) fail(ErrorCode::kBadInput, "x holds a NaN or an infinity");
  return largest;
}

}  // namespace dsv4
