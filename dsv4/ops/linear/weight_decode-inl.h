// Decoding of stored weights to f32 vectors, one struct per format (formats/weight.h).
//
// Each struct decodes `kVectors` vectors of one row at a time, columns in packed order (see
// linear_kernel.h): the even columns of a block of kBlock columns, then the odd ones (kBlock = 1:
// as stored). Included once per Highway target; fixed-size vectors only.

#if defined(DSV4_OPS_LINEAR_WEIGHT_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV4_OPS_LINEAR_WEIGHT_DECODE_INL_H_
#undef DSV4_OPS_LINEAR_WEIGHT_DECODE_INL_H_
#else
#define DSV4_OPS_LINEAR_WEIGHT_DECODE_INL_H_
#endif

#include <cstring>

#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/float16.h"
#include "dsv4/formats/ue8m0.h"
#include "dsv4/ops/linear/linear_kernel.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4::linear_kernel::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

const hn::ScalableTag<float> kF32;
const hn::RebindToUnsigned<decltype(kF32)> kU32;
const hn::Rebind<uint8_t, decltype(kF32)> kU8Quarter;  // as many bytes as f32 lanes
using F32Vec = hn::Vec<decltype(kF32)>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(kF32));

// No format but e4m3 has codes that the fast decode gets wrong.
struct NoWatch {
  HWY_INLINE bool Seen() const { return false; }
};

#if HWY_TARGET != HWY_SCALAR
// Remembers whether a NaN code (0x7f, 0xff) went by: the largest signed and the largest unsigned
// byte.
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

struct DecodeF32 {
  static constexpr int kVectors = 1, kBits = 32, kBlock = 1, kGroup = 0;
  using Watch = NoWatch;

  static HWY_INLINE void Decode(const uint8_t* row, const float*, Watch&, F32Vec* w) {
    w[0] = hn::LoadU(kF32, reinterpret_cast<const float*>(row));
  }
};

struct DecodeF16 {
  static constexpr int kVectors = 1, kBits = 16, kBlock = 1, kGroup = 0;
  using Watch = NoWatch;

  static HWY_INLINE void Decode(const uint8_t* row, const float*, Watch&, F32Vec* w) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
    // Highway's own conversion knows no infinity and no NaN on its emulated targets.
    HWY_ALIGN float values[kLanes];
    for (size_t l = 0; l < static_cast<size_t>(kLanes); ++l) {
      uint16_t code = 0;
      std::memcpy(&code, row + l * sizeof(code), sizeof(code));
      values[l] = f16_to_f32(code);
    }
    w[0] = hn::Load(kF32, values);
#else
    const hn::Rebind<hwy::float16_t, decltype(kF32)> f16;
    w[0] = hn::PromoteTo(kF32, hn::LoadU(f16, reinterpret_cast<const hwy::float16_t*>(row)));
#endif
  }
};

// Two columns a word: the even one moves up, the odd one is there already.
struct DecodeBf16 {
  static constexpr int kVectors = 2, kBits = 16, kBlock = 2 * kLanes, kGroup = 0;
  using Watch = NoWatch;

  static HWY_INLINE void Decode(const uint8_t* row, const float*, Watch&, F32Vec* w) {
    const auto pairs = hn::LoadU(kU32, reinterpret_cast<const uint32_t*>(row));
    w[0] = hn::BitCast(kF32, hn::ShiftLeft<16>(pairs));
    w[1] = hn::BitCast(kF32, hn::And(pairs, hn::Set(kU32, 0xffff0000u)));
  }
};

// An e4m3 code placed in the f16 fields (sign at 15, exponent and mantissa from bit 7) reads as
// value * 2^-8, subnormals included; the scale makes up for it. The code of an odd column needs one
// arithmetic shift to get there, that of an even column two, for two columns a 16-bit word.
struct DecodeFp8 {
  static constexpr int kBits = 8, kGroup = kFp8BlockSize;

#if HWY_TARGET == HWY_SCALAR
  static constexpr int kVectors = 1, kBlock = 1;
  using Watch = NoWatch;

  static HWY_INLINE void Decode(const uint8_t* row, const float* scale, Watch&, F32Vec* w) {
    w[0] = hn::Set(kF32, e4m3_to_f32(*row) * 0x1p-8f * *scale);
  }
#else
  static constexpr int kVectors = 4, kBlock = 4 * kLanes;
  using Watch = NanWatch;

  static HWY_INLINE void Decode(const uint8_t* row, const float* scale, Watch& watch, F32Vec* w) {
    const hn::Repartition<int16_t, decltype(kF32)> i16;
    const hn::Half<decltype(i16)> i16_half;
    const hn::Rebind<hwy::float16_t, decltype(kF32)> f16;
    const auto codes = hn::LoadU(watch.u8, row);
    watch.Note(codes);
    const auto pairs = hn::BitCast(i16, codes), fields = hn::Set(i16, int16_t{-0x4080});
    const auto even = hn::And(hn::ShiftRight<1>(hn::ShiftLeft<8>(pairs)), fields);
    const auto odd = hn::And(hn::ShiftRight<1>(pairs), fields);
    const F32Vec factor = hn::Set(kF32, *scale);
    const auto widen = [&](auto half) HWY_ATTR {
      return hn::Mul(hn::PromoteTo(kF32, hn::BitCast(f16, half)), factor);
    };
    w[0] = widen(hn::LowerHalf(i16_half, even));
    w[1] = widen(hn::UpperHalf(i16_half, even));
    w[2] = widen(hn::LowerHalf(i16_half, odd));
    w[3] = widen(hn::UpperHalf(i16_half, odd));
  }
#endif

  // Scales of the groups [group, group + count), times 2^8 for the decode above. A scale of 2^120
  // or more overflows here; its weights would overflow f32 themselves.
  static void Scales(const Weights& w, int64_t n, int64_t group, int64_t count, float* out) {
    const uint8_t* row = w.scale + n / kFp8BlockSize * w.scale_row_bytes;
    for (int64_t g = 0; g < count; ++g) {
      float scale = 0;
      if (w.scale_is_f32) {
        std::memcpy(&scale, row + (group + g) * 4, sizeof(scale));
      } else {
        scale = ue8m0_to_f32(row[group + g]);
      }
      out[g] = scale * 256.f;
    }
  }
};

// e2m1 codes (in the low nibble of each u32 lane; other bits are ignored) times factor.
// clang-format off
constexpr float kE2M1[16] = {0.f,  0.5f,  1.f,  1.5f,  2.f,  3.f,  4.f,  6.f,
                             -0.f, -0.5f, -1.f, -1.5f, -2.f, -3.f, -4.f, -6.f};
// clang-format on

// Sixteen lanes: all values times the scale are one vector, and decoding is one lookup.
// Eight lanes: the same for the magnitudes. Fewer: a piecewise linear function of the code.
struct E2m1Scaled {
  F32Vec table;

  explicit HWY_INLINE E2m1Scaled(F32Vec factor) {
    if constexpr (kLanes >= 8) {
      table = hn::Mul(hn::LoadU(kF32, kE2M1), factor);
    } else {
      table = factor;
    }
  }
  HWY_INLINE F32Vec operator()(hn::Vec<decltype(kU32)> codes) const {
    const hn::RebindToSigned<decltype(kF32)> i32;
    if constexpr (kLanes >= 16) {
#if HWY_IS_DEBUG_BUILD  // Highway checks indices then; the instruction ignores the other bits
      codes = hn::And(codes, hn::Set(kU32, 15));
#endif
      return hn::TableLookupLanes(table, hn::IndicesFromVec(kF32, hn::BitCast(i32, codes)));
    } else {
      const auto low = hn::BitCast(i32, hn::And(codes, hn::Set(kU32, 7)));
      const auto bit = hn::BitCast(kF32, hn::ShiftLeft<28>(hn::And(codes, hn::Set(kU32, 8))));
      if constexpr (kLanes >= 8) {
        return hn::Xor(hn::TableLookupLanes(table, hn::IndicesFromVec(kF32, low)), bit);
      } else {
        const F32Vec c = hn::ConvertTo(kF32, low);  // twice the value: max(c, 2c - 4, 4c - 16)
        const F32Vec steep = hn::Sub(hn::Add(c, c), hn::Set(kF32, 4.f));
        const F32Vec steepest = hn::Sub(hn::Add(steep, steep), hn::Set(kF32, 8.f));
        const F32Vec half = hn::Mul(hn::Set(kF32, 0.5f), hn::Max(hn::Max(c, steep), steepest));
        return hn::Mul(hn::Xor(half, bit), table);
      }
    }
  }
};

struct DecodeMxfp4 {
  static constexpr int kVectors = 2, kBits = 4, kBlock = 2 * kLanes, kGroup = kMxfp4Group;
  using Watch = NoWatch;

  static HWY_INLINE void Decode(const uint8_t* row, const float* scale, Watch&, F32Vec* w) {
    const auto bytes = hn::PromoteTo(kU32, hn::LoadU(kU8Quarter, row));
    const E2m1Scaled value(hn::Set(kF32, *scale));
    w[0] = value(bytes);
    w[1] = value(hn::ShiftRight<4>(bytes));
  }

  static void Scales(const Weights& w, int64_t n, int64_t group, int64_t count, float* out) {
    const uint8_t* codes = w.scale + n * w.scale_row_bytes + group;
    const auto smallest = hn::Set(kU32, 0x00400000u);  // code 0 is 2^-127, a subnormal
    const auto top = hn::Set(kU32, 0x7f800000u), nan = hn::Set(kU32, 0x7fc00000u);
    int64_t g = 0;
    for (; g + kLanes <= count; g += kLanes) {
      const auto code = hn::PromoteTo(kU32, hn::LoadU(kU8Quarter, codes + g));
      const auto bits = hn::Max(hn::ShiftLeft<23>(code), smallest);
      hn::StoreU(hn::BitCast(kF32, hn::IfThenElse(hn::Eq(bits, top), nan, bits)), kF32, out + g);
    }
    for (; g < count; ++g) out[g] = ue8m0_to_f32(codes[g]);
  }
};

struct DecodeNvfp4 {
  static constexpr int kVectors = 2, kBits = 4, kBlock = 2 * kLanes, kGroup = kNvfp4Group;
  using Watch = NoWatch;

  static HWY_INLINE void Decode(const uint8_t* row, const float* scale, Watch&, F32Vec* w) {
    const auto bytes = hn::PromoteTo(kU32, hn::LoadU(kU8Quarter, row));
    if constexpr (kBlock <= kGroup) {
      const E2m1Scaled value(hn::Set(kF32, *scale));
      w[0] = value(bytes);
      w[1] = value(hn::ShiftRight<4>(bytes));
    } else {
      // Half of the lanes in one group, half in the next.
      const auto first = hn::FirstN(kF32, kLanes / 2);
      const F32Vec factor = hn::IfThenElse(first, hn::Set(kF32, scale[0]), hn::Set(kF32, scale[1]));
      const E2m1Scaled value(hn::Set(kF32, 1.f));
      w[0] = hn::Mul(value(bytes), factor);
      w[1] = hn::Mul(value(hn::ShiftRight<4>(bytes)), factor);
    }
  }

  static void Scales(const Weights& w, int64_t n, int64_t group, int64_t count, float* out) {
    const hn::Rebind<int8_t, decltype(kF32)> i8;
    const hn::Rebind<int16_t, decltype(kF32)> i16;
    const hn::Rebind<hwy::float16_t, decltype(kF32)> f16;
    const uint8_t* codes = w.scale + n * w.scale_row_bytes + group;
    const F32Vec nan = hn::Set(kF32, e4m3_to_f32(0x7f));
    int64_t g = 0;
    for (; g + kLanes <= count; g += kLanes) {
      const auto code = hn::LoadU(i8, reinterpret_cast<const int8_t*>(codes + g));
      const auto half =
          hn::And(hn::ShiftLeft<7>(hn::PromoteTo(i16, code)), hn::Set(i16, int16_t{-0x4080}));
      const F32Vec value =
          hn::Mul(hn::PromoteTo(kF32, hn::BitCast(f16, half)), hn::Set(kF32, 256.f));
      const auto is_nan = hn::Eq(hn::Abs(value), hn::Set(kF32, 480.f));
      hn::StoreU(hn::IfThenElse(is_nan, nan, value), kF32, out + g);
    }
    for (; g < count; ++g) out[g] = e4m3_to_f32(codes[g]);
  }
};

}  // namespace dsv4::linear_kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DSV4_OPS_LINEAR_WEIGHT_DECODE_INL_H_
