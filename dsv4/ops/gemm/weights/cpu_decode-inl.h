// Decoding of stored weights to f32 vectors, one struct per format (formats/weight.h). This file
// contains what all decoders share and the formats of 8 bits and more; cpu_block_decode-inl.h has
// those of 2 to 5 bits.
//
// A decoder reads a row in steps of kVectors vectors. The vectors of a large step would not fit
// into registers together, so a step first loads codes and then decodes values on demand:
//
//   Codes codes = decoder.template load<kCount>(at, column);
//   decoder.value(codes, v)      for v = 0, 1, ..., kCount - 1, each once, in this order
//
// Columns are in packed order (kernel.h): here the even columns of kBlock columns, then the odd
// ones (kBlock = 1: as stored). Included once per Highway target; fixed-size vectors only.

#if defined(DSV4_OPS_GEMM_WEIGHTS_CPU_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV4_OPS_GEMM_WEIGHTS_CPU_DECODE_INL_H_
#undef DSV4_OPS_GEMM_WEIGHTS_CPU_DECODE_INL_H_
#else
#define DSV4_OPS_GEMM_WEIGHTS_CPU_DECODE_INL_H_
#endif

#include <cstring>

#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/float16.h"
#include "dsv4/formats/ue8m0.h"
#include "dsv4/ops/gemm/cpu/kernel.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4::gemm::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

const hn::ScalableTag<float> kF32;
const hn::RebindToUnsigned<decltype(kF32)> kU32;
using F32Vec = hn::Vec<decltype(kF32)>;
using U32Vec = hn::Vec<decltype(kU32)>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(kF32));

// Columns of a row group that are processed at a time. A tile of kTileRows x kChunk floats fills
// most of the L1 cache; shorter chunks fit better but move the sums through the L2 cache more
// often, which costs more.
constexpr int64_t kChunk = 1024;

// The vectors of a small step.
template <int kCount>
struct Values {
  F32Vec vector[kCount];
};

// The base of decoders: a format that needs nothing but its codes.
struct PlainDecoder {
  // 0: every step has kVectors vectors. Otherwise the last step of a row may have this many.
  static constexpr int kHalfVectors = 0;
  // True: values are without their scales, and the sums of a step are multiplied by scale().
  static constexpr bool kScaleSums = false;
  static constexpr int kGroup = 0;  // columns that share a scale

  explicit PlainDecoder(const Weights&) {}
  // Called before columns [k0, k0 + columns) of rows that share their scales with row n are loaded.
  HWY_INLINE void begin_chunk(const Weights&, int64_t, int64_t, int64_t) {}
  template <int kCount>
  static HWY_INLINE F32Vec value(const Values<kCount>& codes, int v) {
    return codes.vector[v];
  }
  // Whether load() has seen a code that it decodes wrongly.
  HWY_INLINE bool seen_nan() const { return false; }
};

struct DecodeF32 : PlainDecoder {
  static constexpr int kVectors = 1, kBits = 32, kBlock = 1;
  using Codes = Values<kVectors>;
  using PlainDecoder::PlainDecoder;

  template <int kCount>
  HWY_INLINE Codes load(const uint8_t* at, int64_t) {
    return {{hn::LoadU(kF32, reinterpret_cast<const float*>(at))}};
  }
};

struct DecodeF16 : PlainDecoder {
  static constexpr int kVectors = 1, kBits = 16, kBlock = 1;
  using Codes = Values<kVectors>;
  using PlainDecoder::PlainDecoder;

  template <int kCount>
  HWY_INLINE Codes load(const uint8_t* at, int64_t) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
    // Highway's own conversion does not handle infinity and NaN on its emulated targets.
    HWY_ALIGN float values[kLanes];
    for (size_t l = 0; l < static_cast<size_t>(kLanes); ++l) {
      uint16_t code = 0;
      std::memcpy(&code, at + l * sizeof(code), sizeof(code));
      values[l] = f16_to_f32(code);
    }
    return {{ hn::Load(kF32, values) }};
#else
    const hn::Rebind<hwy::float16_t, decltype(kF32)> f16;
    return {{hn::PromoteTo(kF32, hn::LoadU(f16, reinterpret_cast<const hwy::float16_t*>(at)))}};
#endif
  }
};

// Two columns per word: the even one is shifted up, the odd one is in place.
struct DecodeBF16 : PlainDecoder {
  static constexpr int kVectors = 2, kBits = 16, kBlock = 2 * kLanes;
  using Codes = Values<kVectors>;
  using PlainDecoder::PlainDecoder;

  template <int kCount>
  HWY_INLINE Codes load(const uint8_t* at, int64_t) {
    const auto pairs = hn::LoadU(kU32, reinterpret_cast<const uint32_t*>(at));
    return {{hn::BitCast(kF32, hn::ShiftLeft<16>(pairs)),
             hn::BitCast(kF32, hn::And(pairs, hn::Set(kU32, 0xffff0000u)))}};
  }
};

#if HWY_TARGET != HWY_SCALAR
// Records whether a NaN code (0x7f, 0xff) was loaded, as the largest signed and the largest
// unsigned byte.
struct NanWatch {
  static constexpr hn::Repartition<int8_t, decltype(kF32)> i8{};
  static constexpr hn::Repartition<uint8_t, decltype(kF32)> u8{};
  hn::Vec<decltype(i8)> largest_signed;
  hn::Vec<decltype(u8)> largest;

  HWY_INLINE NanWatch() : largest_signed(hn::Zero(i8)), largest(hn::Zero(u8)) {}
  HWY_INLINE void Note(hn::Vec<decltype(u8)> codes) {
    largest_signed = hn::Max(largest_signed, hn::BitCast(i8, codes));
    largest = hn::Max(largest, codes);
  }
  HWY_INLINE bool Seen() const {
    return !hn::AllFalse(i8, hn::Eq(largest_signed, hn::Set(i8, int8_t{0x7f}))) ||
           !hn::AllFalse(u8, hn::Eq(largest, hn::Set(u8, uint8_t{0xff})));
  }
};
#endif

// An e4m3 code placed in the fields of an f16 (sign at bit 15, exponent and mantissa from bit 7)
// reads as value * 2^-8, subnormals included; the scale contains the factor 2^8. A 16-bit word
// holds two columns: the code of the odd one needs one arithmetic shift, that of the even one two
// shifts.
struct DecodeFp8 : PlainDecoder {
  static constexpr int kBits = 8;
  // Scales of the chunk, times 2^8. All rows of a group share them (kernel.h, Block).
  float scales[kChunk / kFp8BlockSize] = {};

  explicit HWY_INLINE DecodeFp8(const Weights& w) : PlainDecoder(w) {}

#if HWY_TARGET == HWY_SCALAR
  static constexpr int kVectors = 1, kBlock = 1;
  using Codes = Values<kVectors>;

  template <int kCount>
  HWY_INLINE Codes load(const uint8_t* at, int64_t column) {
    return {{ hn::Set(kF32, e4m3_to_f32(*at) * 0x1p-8f * scales[column / kFp8BlockSize]) }};
  }
#else
  static constexpr int kVectors = 4, kBlock = 4 * kLanes;
  using Codes = Values<kVectors>;
  NanWatch watch;

  HWY_INLINE bool seen_nan() const {
    return watch.Seen();
  }

  template <int kCount>
  HWY_INLINE Codes load(const uint8_t* at, int64_t column) {
    const hn::Repartition<int16_t, decltype(kF32)> i16;
    const hn::Half<decltype(i16)> i16_half;
    const hn::Rebind<hwy::float16_t, decltype(kF32)> f16;
    const auto codes = hn::LoadU(watch.u8, at);
    watch.Note(codes);
    const auto pairs = hn::BitCast(i16, codes), fields = hn::Set(i16, int16_t{-0x4080});
    const auto even = hn::And(hn::ShiftRight<1>(hn::ShiftLeft<8>(pairs)), fields);
    const auto odd = hn::And(hn::ShiftRight<1>(pairs), fields);
    const F32Vec factor = hn::Set(kF32, scales[column / kFp8BlockSize]);
    const auto widen = [&](auto half) HWY_ATTR {
      return hn::Mul(hn::PromoteTo(kF32, hn::BitCast(f16, half)), factor);
    };
    return {{widen(hn::LowerHalf(i16_half, even)), widen(hn::UpperHalf(i16_half, even)),
             widen(hn::LowerHalf(i16_half, odd)), widen(hn::UpperHalf(i16_half, odd))}};
  }
#endif

  // A scale of 2^120 or more overflows here, where the weights themselves would overflow f32.
  void begin_chunk(const Weights& w, int64_t n, int64_t k0, int64_t columns) {
    const uint8_t* row = w.scale + n / kFp8BlockSize * w.scale_row_bytes;
    const int64_t first = k0 / kFp8BlockSize;
    for (int64_t g = 0; g * kFp8BlockSize < columns; ++g) {
      float scale = 0;
      if (w.scale_is_f32) {
        std::memcpy(&scale, row + (first + g) * 4, sizeof(scale));
      } else {
        scale = ue8m0_to_f32(row[first + g]);
      }
      scales[g] = scale * 256.f;
    }
  }
};

}  // namespace dsv4::gemm::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DSV4_OPS_GEMM_WEIGHTS_CPU_DECODE_INL_H_
