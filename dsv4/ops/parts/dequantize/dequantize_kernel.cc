#include "dsv4/ops/parts/dequantize/dequantize_kernel.h"

#include <array>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dsv4/ops/parts/dequantize/dequantize_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "dsv4/cpu/table-inl.h"
#include "dsv4/formats/e2m1.h"
#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/kbit.h"
#include "dsv4/formats/ue8m0.h"

#ifndef DSV4_OPS_DEQUANTIZE_DEQUANTIZE_KERNEL_ONCE
#define DSV4_OPS_DEQUANTIZE_DEQUANTIZE_KERNEL_ONCE
namespace dsv4::dequantize_kernel {

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

}  // namespace dsv4::dequantize_kernel
#endif  // DSV4_OPS_DEQUANTIZE_DEQUANTIZE_KERNEL_ONCE

HWY_BEFORE_NAMESPACE();
namespace dsv4::dequantize_kernel::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

const hn::CappedTag<float, 16> kF32;
const hn::RebindToSigned<decltype(kF32)> kI32;
const hn::Rebind<uint8_t, decltype(kF32)> kU8;
const hn::CappedTag<uint8_t, kKbitBlock> kBytes;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(kF32));
template <int kEntries>
using Table = cpu::HWY_NAMESPACE::Table<decltype(kF32), kEntries>;

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

void DecodePairs(const uint8_t* pairs, PairScale format, const uint8_t* scales, int64_t group,
                 int64_t n, float scale2, float* out) {
  const Table<16> table(kE2M1.data());
  const float* scale = format == PairScale::kE8M0 ? kE8M0.data() : kE4M3.data();
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

void DecodePlanes(const uint32_t* planes, int bits, const float* codebook, const uint8_t* scales,
                  int64_t n, float scale2, float* out) {
  const auto decode = bits == 2   ? DecodePlanesOf<2>
                      : bits == 3 ? DecodePlanesOf<3>
                      : bits == 4 ? DecodePlanesOf<4>
                                  : DecodePlanesOf<5>;
  decode(planes, codebook, scales, n, scale2, out);
}

}  // namespace
}  // namespace dsv4::dequantize_kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace dsv4::dequantize_kernel {

HWY_EXPORT(DecodePairs);
HWY_EXPORT(DecodePlanes);

void decode_pairs(const uint8_t* pairs, PairScale format, const uint8_t* scales, int64_t group,
                  int64_t n, float scale2, float* out) {
  HWY_DYNAMIC_DISPATCH(DecodePairs)(pairs, format, scales, group, n, scale2, out);
}
void decode_planes(const uint32_t* planes, int bits, const float* codebook, const uint8_t* scales,
                   int64_t n, float scale2, float* out) {
  HWY_DYNAMIC_DISPATCH(DecodePlanes)(planes, bits, codebook, scales, n, scale2, out);
}

}  // namespace dsv4::dequantize_kernel
#endif  // HWY_ONCE
