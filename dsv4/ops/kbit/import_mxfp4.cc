#include "dsv4/ops/kbit/import_mxfp4.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

#include "dsv4/base/error.h"
#include "dsv4/cpu/parallel.h"
#include "dsv4/formats/kbit.h"
#include "dsv4/formats/ue8m0.h"

namespace dsv4 {
namespace {

static_assert(kMxfp4Group == kKbitBlock);

constexpr int kBits = 4;
constexpr int kPairBytes = kKbitBlock / 2;
// A block with MXFP4 scale byte b needs E4M4 scale 2^(b - kBias) when tensor_scale is 1.
constexpr int kBias = 124;
constexpr int kSmallest = -14, kLargest = 4, kFitting = kLargest - kSmallest + 1;  // E4M4's powers

using Nibbles = std::array<uint64_t, 2>;  // the 32 codes of a block

Nibbles load(const uint8_t* pairs) {
  Nibbles codes;
  std::memcpy(codes.data(), pairs, kPairBytes);
  return codes;
}

bool is_zero(const Nibbles& codes) {
  return ((codes[0] | codes[1]) & 0x7777777777777777u) == 0;
}

// Bit 0 of every nibble, side by side.
constexpr uint32_t gather_bits(uint64_t nibbles) {
  nibbles &= 0x1111111111111111u;
  nibbles = (nibbles | nibbles >> 3) & 0x0303030303030303u;
  nibbles = (nibbles | nibbles >> 6) & 0x000f000f000f000fu;
  nibbles = (nibbles | nibbles >> 12) & 0x000000ff000000ffu;
  return static_cast<uint32_t>((nibbles | nibbles >> 24) & 0xffffu);
}

uint32_t plane(const Nibbles& codes, int bit) {
  return gather_bits(codes[0] >> bit) | gather_bits(codes[1] >> bit) << 16;
}

// Codes of the sorted codebook: sign and magnitude (s, m) becomes 8 + m or, if negative, 7 - m. So
// the top plane is the inverted sign, and the other planes are inverted where the sign is set.
void convert_block(const Nibbles& codes, uint32_t* planes) {
  const uint32_t negative = plane(codes, kBits - 1);
  for (int j = 0; j < kBits - 1; ++j) planes[j] = plane(codes, j) ^ negative;
  planes[kBits - 1] = ~negative;
}

// The number of nonzero blocks with each scale byte; blocks with NaN scales are counted, zero or
// not.
std::array<int64_t, 256> count_scales(const WeightView& w) {
  std::array<int64_t, 256> total{};
#pragma omp parallel if (cpu::worth_sharing(w.n * w.k))
  {
    std::array<int64_t, 256> count{};
#pragma omp for nowait
    for (int64_t row = 0; row < w.n; ++row) {
      const uint8_t *pairs = w.data.row<uint8_t>(row), *scales = w.scale.row<uint8_t>(row);
      for (int64_t b = 0; b < w.k / kKbitBlock; ++b) {
        if (scales[b] == 255 || !is_zero(load(pairs + b * kPairBytes))) ++count[scales[b]];
      }
    }
#pragma omp critical(dsv4_import_mxfp4)
    for (size_t i = 0; i < total.size(); ++i) total[i] += count[i];
  }
  return total;
}

// The smallest |shift| for which the fewest blocks are outside E4M4's powers of two.
int choose_shift(std::span<const int64_t> count, int64_t* outside) {
  const int64_t blocks = std::accumulate(count.begin(), count.end(), int64_t{0});
  int best = 0;
  *outside = blocks + 1;
  for (int shift = -110; shift <= 126; ++shift) {
    const int first = std::max(kBias + shift + kSmallest, 0);
    const int last = std::min(kBias + shift + kLargest, static_cast<int>(count.size()) - 1);
    int64_t inside = 0;
    for (int b = first; b <= last; ++b) inside += count[static_cast<size_t>(b)];
    const bool better = blocks - inside < *outside;
    if (better || (blocks - inside == *outside && std::abs(shift) < std::abs(best))) best = shift;
    *outside = std::min(*outside, blocks - inside);
  }
  return best;
}

void convert(const ImportMxfp4Args& args, int shift) {
  const WeightView& w = args.weight;
#pragma omp parallel for if (cpu::worth_sharing(4 * w.n * w.k))
  for (int64_t row = 0; row < w.n; ++row) {
    const uint8_t *pairs = w.data.row<uint8_t>(row), *scales = w.scale.row<uint8_t>(row);
    for (int64_t b = 0; b < w.k / kKbitBlock; ++b) {
      const Nibbles codes = load(pairs + b * kPairBytes);
      convert_block(codes, args.planes.row<uint32_t>(row) + b * kBits);
      const float scale = std::ldexp(1.f, scales[b] - kBias - shift);
      args.scales.row<uint8_t>(row)[b] = is_zero(codes) ? uint8_t{0} : f32_to_e4m4(scale);
    }
  }
}

}  // namespace

ImportMxfp4Result import_mxfp4(const ImportMxfp4Args& args) {
  const WeightView& w = args.weight;
  DSV4_CHECK(w.format == WeightFormat::kMxfp4, "weight: want mxfp4, got {}", name(w.format));
  check("weight", w);
  expect("planes", args.planes, {DType::kI32}, {w.n, w.k / kKbitBlock * kBits});
  expect("scales", args.scales, {DType::kU8}, {w.n, w.k / kKbitBlock});
  const std::array<int64_t, 256> count = count_scales(w);
  const auto numbers = std::span(count).first(255);
  ImportMxfp4Result result{.blocks_nan = count[255]};
  const int shift = choose_shift(numbers, &result.blocks_out_of_range);
  result.tensor_scale = std::ldexp(1.f, shift);
  const auto present = [](int64_t blocks) { return blocks > 0; };
  const auto first = std::find_if(numbers.begin(), numbers.end(), present);
  if (first != numbers.end()) {
    const auto last = std::find_if(numbers.rbegin(), numbers.rend(), present);
    result.smallest_exponent = static_cast<int>(first - numbers.begin()) - 127;
    result.largest_exponent = static_cast<int>(numbers.rend() - last) - 1 - 127;
  }
  if (result.fits()) convert(args, shift);
  return result;
}

}  // namespace dsv4
