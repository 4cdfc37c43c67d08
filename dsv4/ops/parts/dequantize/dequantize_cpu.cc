// The implementation cpu of dequantize.h: SIMD kernels for runs of 4-bit pairs and of bit planes,
// and a loop over segments of rows.

#include "dsv4/ops/parts/dequantize/dequantize.h"

#include <algorithm>
#include <array>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dsv4/ops/parts/dequantize/dequantize_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "dsv4/base/bits.h"
#include "dsv4/cpu/parallel.h"
#include "dsv4/cpu/rows.h"
#include "dsv4/cpu/table-inl.h"
#include "dsv4/cpu/vec.h"
#include "dsv4/formats/e2m1.h"
#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/kbit.h"
#include "dsv4/formats/ue8m0.h"

#ifndef DSV4_OPS_DEQUANTIZE_CPU_ONCE
#define DSV4_OPS_DEQUANTIZE_CPU_ONCE
namespace dsv4::dequantize_kernel::cpu {

template <class Decode>
constexpr std::array<float, 256> table_of(Decode decode) {
  std::array<float, 256> values{};
  for (size_t b = 0; b < 256; ++b) values[b] = decode(static_cast<uint8_t>(b));
  return values;
}
inline constexpr auto kE4M4 = table_of(e4m4_to_f32);
inline constexpr auto kE4M3 = table_of(e4m3_to_f32);
inline constexpr auto kE8M0 = table_of(ue8m0_to_f32);

constexpr std::array<float, 16> e2m1_values() {
  std::array<float, 16> values{};
  for (size_t c = 0; c < 16; ++c) values[c] = e2m1_to_f32(static_cast<uint8_t>(c));
  return values;
}
inline constexpr auto kE2M1 = e2m1_values();

enum class PairScale : uint8_t { kPowerOfTwo, kE4M3Number };

}  // namespace dsv4::dequantize_kernel::cpu
#endif  // DSV4_OPS_DEQUANTIZE_CPU_ONCE

HWY_BEFORE_NAMESPACE();
namespace dsv4::dequantize_kernel::cpu::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

const hn::CappedTag<float, 16> kF32;
const hn::RebindToSigned<decltype(kF32)> kI32;
const hn::Rebind<uint8_t, decltype(kF32)> kU8;
const hn::CappedTag<uint8_t, kKbitBlock> kBytes;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(kF32));
template <int kEntries>
using Table = dsv4::cpu::HWY_NAMESPACE::Table<decltype(kF32), kEntries>;

// codes: [n], a byte each, n a multiple of 16
template <int kEntries>
HWY_INLINE void LookUp(const Table<kEntries>& table, const uint8_t* codes, int64_t n, float scale,
                       float scale2, float* out) {
  const auto factor = hn::Set(kF32, scale), factor2 = hn::Set(kF32, scale2);
  for (int64_t i = 0; i < n; i += kLanes) {
    const auto index = hn::PromoteTo(kI32, hn::LoadU(kU8, codes + i));
    hn::StoreU(hn::Mul(hn::Mul(table(index), factor), factor2), kF32, out + i);
  }
}

// pairs: [8] -> codes: [16]
HWY_INLINE void SplitPairs(const uint8_t* pairs, uint8_t* codes) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < 16; ++i) codes[i] = e2m1_code(pairs[i / 2], i % 2);
#else
  const hn::CappedTag<uint8_t, 16> bytes;
  const hn::CappedTag<uint8_t, 8> half;
  const auto both = hn::ZeroExtendVector(bytes, hn::LoadU(half, pairs));
  const auto low = hn::And(both, hn::Set(bytes, uint8_t{15}));
  hn::StoreU(hn::InterleaveLower(bytes, low, hn::ShiftRight<4>(both)), bytes, codes);
#endif
}

// out[i] = e2m1(code i) * scales[i / group] * scale2
// pairs: [n / 2], low nibble first; scales: [n / group]; group: a multiple of 16; n of group
void DecodePairs(const uint8_t* pairs, PairScale format, const uint8_t* scales, int64_t group,
                 int64_t n, float scale2, float* out) {
  const Table<16> table(kE2M1.data());
  const float* scale = format == PairScale::kPowerOfTwo ? kE8M0.data() : kE4M3.data();
  for (int64_t i = 0; i < n; i += 16) {
    HWY_ALIGN uint8_t codes[16];
    SplitPairs(pairs + i / 2, codes);
    LookUp(table, codes, 16, scale[scales[i / group]], scale2, out + i);
  }
}

// planes: [bits] -> codes: [32]. A plane is a mask over the bytes of a vector.
template <int kBits>
HWY_INLINE void Codes(const uint32_t* planes, uint8_t* codes) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < kKbitBlock; ++i) codes[i] = kbit_code(planes, kBits, i);
#else
  constexpr int kStep = static_cast<int>(hn::MaxLanes(kBytes));
  for (int i = 0; i < kKbitBlock; i += kStep) {
    auto code = hn::Zero(kBytes);
#pragma GCC unroll 8
    for (int j = 0; j < kBits; ++j) {
      const uint64_t word = planes[j] >> i;  // Highway may read eight bytes of a mask
      uint8_t bits[8];
      std::memcpy(bits, &word, sizeof(word));
      const auto bit = hn::Set(kBytes, static_cast<uint8_t>(1 << j));
      code = hn::Or(code, hn::IfThenElseZero(hn::LoadMaskBits(kBytes, bits), bit));
    }
    hn::StoreU(code, kBytes, codes + i);
  }
#endif
}

template <int kBits>
void DecodePlanesOf(const uint32_t* planes, const float* codebook, const uint8_t* scales, int64_t n,
                    float scale2, float* out) {
  constexpr int kEntries = kBits == 5 ? 32 : 16;
  float values[kEntries] = {};
  std::memcpy(values, codebook, sizeof(float) << kBits);
  const Table<kEntries> table(values);
  for (int64_t i = 0; i < n; i += kKbitBlock) {
    HWY_ALIGN uint8_t codes[kKbitBlock];
    Codes<kBits>(planes + i / kKbitBlock * kBits, codes);
    LookUp(table, codes, kKbitBlock, kE4M4[scales[i / kKbitBlock]], scale2, out + i);
  }
}

// out[i] = codebook[code i] * e4m4(scales[i / 32]) * scale2
// planes: [n / 32, bits]; codebook: [2^bits]; n: a multiple of 32
void DecodePlanes(const uint32_t* planes, int bits, const float* codebook, const uint8_t* scales,
                  int64_t n, float scale2, float* out) {
  const auto decode = bits == 2   ? DecodePlanesOf<2>
                      : bits == 3 ? DecodePlanesOf<3>
                      : bits == 4 ? DecodePlanesOf<4>
                                  : DecodePlanesOf<5>;
  decode(planes, codebook, scales, n, scale2, out);
}

}  // namespace
}  // namespace dsv4::dequantize_kernel::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dsv4::dequantize_kernel::cpu {
namespace {

HWY_EXPORT(DecodePairs);
HWY_EXPORT(DecodePlanes);

// Columns decoded at a time: whole scale groups of every format, and f32 values that stay in L1.
constexpr int64_t kSegment = 2048;
static_assert(kSegment % kFp8BlockSize == 0);

void decode_fp8(const WeightView& w, int64_t row, int64_t begin, int64_t count, float* out) {
  const uint8_t* codes = w.data.row<uint8_t>(row) + begin;
  const int64_t scale_row = row / kFp8BlockSize, first = begin / kFp8BlockSize;
  for (int64_t i = 0; i < count; i += kFp8BlockSize) {
    const int64_t block = first + i / kFp8BlockSize;
    const float scale = w.scale.dtype == DType::kF32
                            ? w.scale.row<float>(scale_row)[block]
                            : ue8m0_to_f32(w.scale.row<uint8_t>(scale_row)[block]);
    dsv4::cpu::decode_e4m3(codes + i, scale, out + i, std::min<int64_t>(kFp8BlockSize, count - i));
  }
}

// Columns [begin, begin + count) of a row as f32; `begin` is a multiple of kSegment.
void decode(const WeightView& w, int64_t row, int64_t begin, int64_t count, float* out) {
  switch (w.format) {
    case WeightFormat::kF32:
    case WeightFormat::kBF16:
    case WeightFormat::kF16:
      return dsv4::cpu::load(w.data, row * w.data.row_stride() + begin, count, out);
    case WeightFormat::kFp8Block:
      return decode_fp8(w, row, begin, count, out);
    case WeightFormat::kMxfp4:
      return HWY_DYNAMIC_DISPATCH(DecodePairs)(
          w.data.row<uint8_t>(row) + begin / 2, PairScale::kPowerOfTwo,
          w.scale.row<uint8_t>(row) + begin / kMxfp4Group, kMxfp4Group, count, 1.f, out);
    case WeightFormat::kNvfp4:
      return HWY_DYNAMIC_DISPATCH(DecodePairs)(
          w.data.row<uint8_t>(row) + begin / 2, PairScale::kE4M3Number,
          w.scale.row<uint8_t>(row) + begin / kNvfp4Group, kNvfp4Group, count, w.scale2, out);
    case WeightFormat::kKbit: {
      const int64_t block = begin / kKbitBlock;
      return HWY_DYNAMIC_DISPATCH(DecodePlanes)(
          w.data.row<uint32_t>(row) + block * w.bits, w.bits, w.codebook.as<float>(),
          w.scale.row<uint8_t>(row) + block, count, w.scale2, out);
    }
  }
}

}  // namespace

void run(const Context&, const DequantizeArgs& args) {
  const int64_t rows = args.weight.n, k = args.weight.k, segments = ceil_div(k, kSegment);
  const bool in_place = args.out.dtype == DType::kF32;
#pragma omp parallel if (dsv4::cpu::worth_sharing(2 * rows * k))
  {
    std::array<float, kSegment> values;
#pragma omp for
    for (int64_t unit = 0; unit < rows * segments; ++unit) {
      const int64_t row = unit / segments, begin = unit % segments * kSegment;
      const int64_t count = std::min(kSegment, k - begin);
      const int64_t offset = row * args.out.row_stride() + begin;
      float* out = in_place ? args.out.as<float>() + offset : values.data();
      decode(args.weight, row, begin, count, out);
      if (!in_place) dsv4::cpu::store(args.out, offset, count, out);
    }
  }
}

}  // namespace dsv4::dequantize_kernel::cpu
#endif  // HWY_ONCE
