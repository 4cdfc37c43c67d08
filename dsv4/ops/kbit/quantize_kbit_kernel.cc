#include "dsv4/ops/kbit/quantize_kbit_kernel.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dsv4/ops/kbit/quantize_kbit_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "dsv4/cpu/table-inl.h"

#ifndef DSV4_OPS_KBIT_QUANTIZE_KBIT_KERNEL_ONCE
#define DSV4_OPS_KBIT_QUANTIZE_KBIT_KERNEL_ONCE
namespace dsv4::kbit_kernel {

// The search evaluates this many candidates at a time, one per lane.
constexpr int kBatch = 16;
constexpr int reach_up(int bits) {
  return bits > 3 ? 23 : 15;
}

struct ScaleTable {
  float scale[256], inverse[256];  // inverse of 0: 0
};

constexpr ScaleTable make_scale_table() {
  ScaleTable table{};
  for (int b = 0; b < 256; ++b) {
    table.scale[b] = e4m4_to_f32(static_cast<uint8_t>(b));
    table.inverse[b] = b == 0 ? 0.f : 1.f / table.scale[b];
  }
  return table;
}
inline constexpr ScaleTable kScales = make_scale_table();

// The block whose scale is searched. `z` contains magnitudes if the quantizer uses magnitudes.
struct SearchBlock {
  const float* z;        // [32], zero from count on
  const float* weights;  // [32] or null
  int count;             // elements that are not padding
};

struct Best {
  float error;
  int byte;
};

}  // namespace dsv4::kbit_kernel
#endif  // DSV4_OPS_KBIT_QUANTIZE_KBIT_KERNEL_ONCE

HWY_BEFORE_NAMESPACE();
namespace dsv4::kbit_kernel::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

const hn::CappedTag<float, kBatch> kF32;
const hn::RebindToUnsigned<decltype(kF32)> kU32;
const hn::RebindToSigned<decltype(kF32)> kI32;
const hn::Rebind<uint8_t, decltype(kF32)> kU8;
const hn::CappedTag<uint8_t, kKbitBlock> kBytes;
using F32Vec = hn::Vec<decltype(kF32)>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(kF32));

// The largest magnitude of a block as bits, which order like the magnitudes, with NaN above all.
uint32_t AbsMaxBits(const float* z) {
  const auto mask = hn::Set(kI32, 0x7fffffff);
  auto most = hn::Zero(kI32);
  for (int i = 0; i < kKbitBlock; i += kLanes) {
    most = hn::Max(most, hn::And(hn::BitCast(kI32, hn::LoadU(kF32, z + i)), mask));
  }
  return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(kI32, most)));
}

// codes: [32] -> planes: [bits]
void PackPlanes(const uint8_t* codes, int bits, uint32_t* planes) {
  constexpr int kStep = static_cast<int>(hn::MaxLanes(kBytes));
  for (int j = 0; j < bits; ++j) {
    const auto bit = hn::Set(kBytes, static_cast<uint8_t>(1 << j));
    uint32_t plane = 0;
    for (int i = 0; i < kKbitBlock; i += kStep) {
      uint8_t mask[8] = {};
      hn::StoreMaskBits(kBytes, hn::TestBit(hn::LoadU(kBytes, codes + i), bit), mask);
      uint32_t part = 0;
      std::memcpy(&part, mask, sizeof(part));
      plane |= part << i;
    }
    planes[j] = plane;
  }
}

// The nearest codebook value of z / divisor: the scan of the reference, for all 32 elements at
// once. A later value must be strictly nearer to be selected.
void EncodeBlock(const Codebook& book, const float* z, float divisor, uint32_t* planes) {
  HWY_ALIGN uint8_t codes[kKbitBlock];
  const int size = book.size();
  for (int i = 0; i < kKbitBlock; i += kLanes) {
    const F32Vec t = hn::Div(hn::LoadU(kF32, z + i), hn::Set(kF32, divisor));
    F32Vec nearest = hn::Abs(hn::Sub(t, hn::Set(kF32, book.value[0])));
    auto code = hn::Zero(kU32);
    for (int c = 1; c < size; ++c) {
      const F32Vec value = hn::Set(kF32, book.value[static_cast<size_t>(c)]);
      const F32Vec distance = hn::Abs(hn::Sub(t, value));
      const auto nearer = hn::Lt(distance, nearest);
      nearest = hn::Min(distance, nearest);
      code = hn::IfThenElse(hn::RebindMask(kU32, nearer), hn::Set(kU32, static_cast<uint32_t>(c)),
                            code);
    }
    hn::StoreU(hn::TruncateTo(kU8, code), kU8, codes + i);
  }
  PackPlanes(codes, book.bits, planes);
}

// min_c (t - c)^2 over all levels.
template <int kLevels>
struct ByLevels {
  F32Vec level[kLevels];

  explicit HWY_INLINE ByLevels(const Quantizer& q) {
#pragma GCC unroll 32
    for (size_t i = 0; i < kLevels; ++i) level[i] = hn::Set(kF32, q.level[i]);
  }
  HWY_INLINE F32Vec operator()(F32Vec t) const {
    F32Vec distance = hn::Sub(t, level[0]);
    F32Vec least = hn::Mul(distance, distance);
#pragma GCC unroll 32
    for (int i = 1; i < kLevels; ++i) {
      distance = hn::Sub(t, level[i]);
      least = hn::Min(least, hn::Mul(distance, distance));
    }
    return least;
  }
};

// ByCells gives the bits of ByLevels from the two levels of t's cell alone: rounding is monotonic,
// so the nearest level gives the smallest rounded square.
template <int kCells>
struct ByCells {
  const cpu::HWY_NAMESPACE::Table<decltype(kF32), kCells> below, above;

  explicit HWY_INLINE ByCells(const Quantizer& q) : below(q.below.data()), above(q.above.data()) {}
  HWY_INLINE F32Vec operator()(F32Vec t) const {
    // Adding 2^23 puts the rounded number into the low bits.
    const F32Vec inside = hn::Min(t, hn::Set(kF32, kCells - 1));
    const auto bits = hn::BitCast(kI32, hn::Add(inside, hn::Set(kF32, 0x1p23f)));
    const auto cell = hn::And(bits, hn::Set(kI32, kCells - 1));
    const F32Vec under = hn::Sub(t, below(cell)), over = hn::Sub(t, above(cell));
    return hn::Min(hn::Mul(under, under), hn::Mul(over, over));
  }
};

// Squared errors over the block for the scale bytes base .. base + 15, one per lane.
// Multiplications and additions are not fused and elements are added in order, so the bits are the
// same on every instruction set.
template <class Squares, bool kWeighted>
void BatchErrors(const Quantizer& q, const SearchBlock& block, int base, float* errors) {
  const Squares squares(q);
  const F32Vec unit = hn::Set(kF32, q.unit), per_unit = hn::Set(kF32, 1 / q.unit);
  for (int v = 0; v < kBatch; v += kLanes) {
    const F32Vec inverse = hn::Mul(hn::LoadU(kF32, kScales.inverse + base + v), unit);
    F32Vec sum = hn::Zero(kF32);
    for (int i = 0; i < block.count; ++i) {
      F32Vec square = squares(hn::Mul(hn::Set(kF32, block.z[i]), inverse));
      if constexpr (kWeighted) square = hn::Mul(square, hn::Set(kF32, block.weights[i]));
      sum = hn::Add(sum, square);
    }
    const F32Vec scale = hn::Mul(hn::LoadU(kF32, kScales.scale + base + v), per_unit);
    hn::StoreU(hn::Mul(sum, hn::Mul(scale, scale)), kF32, errors + v);
  }
}

// sum w max(0, |z| - reach)^2: a lower bound of the error of every scale whose largest value is at
// most `reach`.
template <bool kWeighted>
float ClippingError(const SearchBlock& block, float reach) {
  F32Vec sum = hn::Zero(kF32);
  for (int i = 0; i < kKbitBlock; i += kLanes) {
    const F32Vec magnitude = hn::Abs(hn::LoadU(kF32, block.z + i));
    const F32Vec over = hn::Max(hn::Sub(magnitude, hn::Set(kF32, reach)), hn::Zero(kF32));
    F32Vec square = hn::Mul(over, over);
    if constexpr (kWeighted) square = hn::Mul(square, hn::LoadU(kF32, block.weights + i));
    sum = hn::Add(sum, square);
  }
  return hn::GetLane(hn::SumOfLanes(kF32, sum));
}

// The error of byte 0, whose values are all zero; elements are added in order, as in BatchErrors.
float ErrorOfZeros(const SearchBlock& block) {
  float sum = 0;
  for (int i = 0; i < block.count; ++i) {
    const float square = block.z[i] * block.z[i];
    sum += block.weights == nullptr ? square : square * block.weights[i];
  }
  return sum;
}

// The better of the best byte so far and bytes base .. base + 15; with equal errors, the smaller
// byte.
template <class Squares, bool kWeighted>
void TryBatch(const Quantizer& q, const SearchBlock& block, int base, Best& best) {
  HWY_ALIGN float errors[kBatch];
  BatchErrors<Squares, kWeighted>(q, block, base, errors);
  if (base == 0) errors[0] = ErrorOfZeros(block);
  F32Vec least = hn::Load(kF32, errors);
  for (int v = kLanes; v < kBatch; v += kLanes) least = hn::Min(least, hn::Load(kF32, errors + v));
  const float error = hn::GetLane(hn::MinOfLanes(kF32, least));
  if (error > best.error) return;
  const int byte = base + static_cast<int>(std::find(errors, errors + kBatch, error) - errors);
  if (error < best.error || byte < best.byte) best = {error, byte};
}

template <class Squares, bool kWeighted>
uint8_t SearchBytes(const Quantizer& q, const SearchBlock& block, float absmax) {
  const float largest = q.codebook.largest();
  const int full = f32_to_e4m4(std::min(absmax / q.reach, kE4M4Max));
  const int last = std::min(full + reach_up(q.codebook.bits), 255);
  Best best{std::numeric_limits<float>::infinity(), 0};
  // Errors have a relative rounding error of up to 4e-6; the slack keeps the bound valid.
  const auto may_win = [&](int byte) {
    return 0.9999f * ClippingError<kWeighted>(block, kScales.scale[byte] * largest) <= best.error;
  };
  for (int base = last + 1; base > 0;) {
    if (base <= full && !may_win(base - 1)) break;
    base = std::max(base - kBatch, 0);
    TryBatch<Squares, kWeighted>(q, block, base, best);
  }
  return static_cast<uint8_t>(best.byte);
}

template <bool kWeighted>
uint8_t SearchScale(const Quantizer& q, const SearchBlock& block, float absmax) {
  if constexpr (kLanes >= 8) {
    if (q.num_cells == 16) return SearchBytes<ByCells<16>, kWeighted>(q, block, absmax);
    if (q.num_cells == 32) return SearchBytes<ByCells<32>, kWeighted>(q, block, absmax);
  }
  switch (q.num_levels) {
    case 2:
      return SearchBytes<ByLevels<2>, kWeighted>(q, block, absmax);
    case 4:
      return SearchBytes<ByLevels<4>, kWeighted>(q, block, absmax);
    case 8:
      return SearchBytes<ByLevels<8>, kWeighted>(q, block, absmax);
    case 16:
      return SearchBytes<ByLevels<16>, kWeighted>(q, block, absmax);
    default:
      return SearchBytes<ByLevels<32>, kWeighted>(q, block, absmax);
  }
}

uint8_t SearchedScale(const Quantizer& q, const float* z, int count, const float* weights,
                      float absmax) {
  HWY_ALIGN float magnitudes[kKbitBlock];
  SearchBlock block{z, weights, count};
  if (q.magnitudes) {
    for (int i = 0; i < kKbitBlock; i += kLanes) {
      hn::Store(hn::Abs(hn::LoadU(kF32, z + i)), kF32, magnitudes + i);
    }
    block.z = magnitudes;
  }
  return weights == nullptr ? SearchScale<false>(q, block, absmax)
                            : SearchScale<true>(q, block, absmax);
}

int64_t QuantizeRow(const Quantizer& q, const float* z, int64_t k, const float* weights,
                    uint32_t* planes, uint8_t* scales) {
  const int bits = q.codebook.bits;
  const auto limit = std::bit_cast<uint32_t>(q.limit);
  for (int64_t b = 0; b * kKbitBlock < k; ++b) {
    const float* block = z + b * kKbitBlock;
    const uint32_t most = AbsMaxBits(block);
    if (most > limit) return b;
    const auto absmax = std::bit_cast<float>(most);
    float divisor = absmax;
    if (q.choice == ScaleChoice::kReference) {
      scales[b] = f32_to_e4m4(absmax);
    } else if (absmax == 0) {
      scales[b] = 0;
    } else {
      const auto count = static_cast<int>(std::min<int64_t>(kKbitBlock, k - b * kKbitBlock));
      const float* w = weights == nullptr ? nullptr : weights + b * kKbitBlock;
      scales[b] = SearchedScale(q, block, count, w, absmax);
      divisor = kScales.scale[scales[b]];
    }
    EncodeBlock(q.codebook, block, std::max(divisor, 1e-8f), planes + b * bits);
  }
  return -1;
}

}  // namespace
}  // namespace dsv4::kbit_kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dsv4::kbit_kernel {

HWY_EXPORT(QuantizeRow);

namespace {

size_t nearest_level(const Quantizer& q, float t) {
  const float* first = q.level.data();
  const float* nearest = std::min_element(first, first + q.num_levels, [&](float a, float b) {
    return std::abs(t - a) < std::abs(t - b);
  });
  return static_cast<size_t>(nearest - first);
}

float nearer_end(const Codebook& book) {
  const float low = -book.values().front(), high = book.values().back();
  return low > 0 && high > 0 ? std::min(low, high) : book.largest();
}

// Fills the cells; returns false if one of them would need more than two levels.
bool fill_cells(Quantizer& q, int cells) {
  for (int i = 0; i < cells; ++i) {
    const auto middle = static_cast<float>(i);
    const size_t below = nearest_level(q, std::max(middle - 0.5f, 0.f));
    const size_t above =
        i + 1 < cells ? nearest_level(q, middle + 0.5f) : static_cast<size_t>(q.num_levels) - 1;
    if (above > below + 1) return false;
    q.below[static_cast<size_t>(i)] = q.level[below];
    q.above[static_cast<size_t>(i)] = q.level[above];
  }
  return true;
}

}  // namespace

Quantizer::Quantizer(const Codebook& book, ScaleChoice scale_choice)
    : codebook(book),
      choice(scale_choice),
      reach(nearer_end(book)),
      limit(kE4M4Max * (choice == ScaleChoice::kReference ? 1.f : std::min(1.f, reach))),
      magnitudes(book.antisymmetric()),
      num_levels(magnitudes ? book.size() / 2 : book.size()) {
  const int cells = num_levels > 8 ? 32 : 16;
  // The largest value is in (cells / 2, cells] units.
  unit = static_cast<float>(cells) * std::exp2(-std::ceil(std::log2(book.largest())));
  const size_t first = magnitudes ? static_cast<size_t>(num_levels) : 0;
  for (size_t i = 0; i < static_cast<size_t>(num_levels); ++i)
    level[i] = unit * book.value[first + i];
  if (magnitudes && num_levels > 2 && fill_cells(*this, cells)) num_cells = cells;
}

int64_t quantize_row(const Quantizer& quantizer, const float* z, int64_t k, const float* weights,
                     uint32_t* planes, uint8_t* scales) {
  return HWY_DYNAMIC_DISPATCH(QuantizeRow)(quantizer, z, k, weights, planes, scales);
}

}  // namespace dsv4::kbit_kernel
#endif  // HWY_ONCE
