// Decoding of the formats of 2 to 5 bits: MXFP4, NVFP4 and k-bit (formats/weight.h).
//
// A block is the columns that share a scale, and each lane decodes a block of its own: lane l of
// vector v of a step is column `run * l + v`, where `run` is the number of vectors in the step. All
// vectors of a step therefore have the same scales, which are applied once, to the sums of the step
// (kScaleSums). A step begins with a transposition from memory order to "word m of every lane's
// block", a few instructions for a word of 8 codes; after that, a vector of codes is a shift, and
// its values are one table lookup.
//
// In full steps each lane has a block. The last step of a row may be a half step, in which two
// lanes share a block, 16 columns each. MXFP4 and k-bit process the same columns in the same order.

#if defined(DSV4_OPS_GEMM_WEIGHTS_CPU_BLOCK_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DSV4_OPS_GEMM_WEIGHTS_CPU_BLOCK_DECODE_INL_H_
#undef DSV4_OPS_GEMM_WEIGHTS_CPU_BLOCK_DECODE_INL_H_
#else
#define DSV4_OPS_GEMM_WEIGHTS_CPU_BLOCK_DECODE_INL_H_
#endif

#include <array>

#include "dsv4/formats/e4m4.h"
#include "dsv4/formats/kbit.h"
#include "dsv4/ops/gemm/weights/cpu_decode-inl.h"

HWY_BEFORE_NAMESPACE();
namespace dsv4::gemm::cpu::HWY_NAMESPACE {

constexpr bool kHalfSteps = kLanes >= 8;
// Half a vector; used only where there are half steps.
constexpr int kHalfLanes = kHalfSteps ? kLanes / 2 : kLanes;
const hn::CappedTag<float, kHalfLanes> kF32Half;
const hn::RebindToUnsigned<decltype(kF32Half)> kU32Half;

// The lanes that hold the words of a stride-K sequence after the lanes of one remainder have been
// selected from each of its vectors. K is odd, so the lanes of these words are all different.
template <int K, int kCount>
struct OddStride {
  std::array<uint32_t, kCount> residue{};             // l mod K
  std::array<std::array<int32_t, kCount>, K> lane{};  // [j][l]: (K l + j) mod kCount

  constexpr OddStride() {
    for (size_t l = 0; l < kCount; ++l) {
      residue[l] = static_cast<uint32_t>(l % K);
      for (size_t j = 0; j < K; ++j) lane[j][l] = static_cast<int32_t>((K * l + j) % kCount);
    }
  }
};
template <int K, int kCount>
alignas(64) constexpr OddStride<K, kCount> kOddStride;

// out[j] lane l = words[K l + j], any alignment. For even K, even and odd words are separated once
// or twice. For odd K, see OddStride.
template <int K, class D>
HWY_INLINE void Deinterleave(D d, const uint8_t* bytes, hn::Vec<D>* out) {
  const auto* words = reinterpret_cast<const uint32_t*>(bytes);
#if HWY_TARGET == HWY_SCALAR
  for (int j = 0; j < K; ++j) out[j] = hn::LoadU(d, words + j);
#else
  constexpr int kCount = static_cast<int>(hn::MaxLanes(d));
  hn::Vec<D> in[K];
  for (int j = 0; j < K; ++j) in[j] = hn::LoadU(d, words + j * kCount);
  if constexpr (K == 2) {
    out[0] = hn::ConcatEven(d, in[1], in[0]);
    out[1] = hn::ConcatOdd(d, in[1], in[0]);
  } else if constexpr (K == 4) {
    const auto even0 = hn::ConcatEven(d, in[1], in[0]), odd0 = hn::ConcatOdd(d, in[1], in[0]);
    const auto even1 = hn::ConcatEven(d, in[3], in[2]), odd1 = hn::ConcatOdd(d, in[3], in[2]);
    out[0] = hn::ConcatEven(d, even1, even0);
    out[1] = hn::ConcatEven(d, odd1, odd0);
    out[2] = hn::ConcatOdd(d, even1, even0);
    out[3] = hn::ConcatOdd(d, odd1, odd0);
  } else {
    const auto& table = kOddStride<K, kCount>;
    const auto residue = hn::LoadU(d, table.residue.data());
#pragma GCC unroll 8
    for (int j = 0; j < K; ++j) {
      auto picked = in[0];  // lane p holds the word of vector v with (kCount v + p) mod K = j
#pragma GCC unroll 8
      for (int v = 0; v < K; ++v) {
        const int wanted = ((j - kCount * v) % K + K) % K;
        const auto mine = hn::Eq(residue, hn::Set(d, static_cast<uint32_t>(wanted)));
        picked = hn::IfThenElse(mine, in[v], picked);
      }
      const hn::RebindToSigned<D> signed_d;
      const auto lanes = hn::LoadU(signed_d, table.lane[static_cast<size_t>(j)].data());
      out[j] = hn::TableLookupLanes(picked, hn::IndicesFromVec(d, lanes));
    }
  }
#endif
}

// Looks up values[code] for the code in the low kBits bits of every lane; other bits are ignored.
template <int kBits>
class Lookup {
 public:
  explicit HWY_INLINE Lookup(const float* values) : values_(values) {
    HWY_ALIGN float repeated[kTables * kLanes];
    for (int i = 0; i < kTables * kLanes; ++i) repeated[i] = values[i & (kSize - 1)];
    for (int i = 0; i < kTables; ++i) tables_[i] = hn::Load(kF32, repeated + i * kLanes);
  }

  HWY_INLINE F32Vec operator()(U32Vec codes) const {
    const hn::RebindToSigned<decltype(kF32)> i32;
    if constexpr (kLanes < 8) {
      const auto index = hn::BitCast(i32, hn::And(codes, hn::Set(kU32, kSize - 1)));
      return hn::GatherIndex(kF32, values_, index);
#if HWY_ARCH_X86 && HWY_MAX_BYTES == 64
    } else if constexpr (kTables == 2) {
      // NOTE: Highway 1.0.3 has no lookup in two vectors. With one instruction instead of four, K =
      // 5 takes three quarters of the time (2026-11-21).
      return F32Vec{_mm512_permutex2var_ps(tables_[0].raw, codes.raw, tables_[1].raw)};
#endif
    } else {
      U32Vec lane = codes;
#if HWY_IS_DEBUG_BUILD  // Highway then checks indices; the instruction ignores the other bits
      lane = hn::And(codes, hn::Set(kU32, kLanes - 1));
#endif
      const auto index = hn::IndicesFromVec(kF32, hn::BitCast(i32, lane));
      F32Vec found[kTables];
      for (int i = 0; i < kTables; ++i) found[i] = hn::TableLookupLanes(tables_[i], index);
      // The lowest bit above the index selects among pairs of tables, the next among pairs of
      // those.
      for (int bit = kLanes, left = kTables / 2; left > 0; bit *= 2, left /= 2) {
        const auto upper =
            hn::RebindMask(kF32, hn::TestBit(codes, hn::Set(kU32, static_cast<uint32_t>(bit))));
        for (int i = 0; i < left; ++i) {
          found[i] = hn::IfThenElse(upper, found[2 * i + 1], found[2 * i]);
        }
      }
      return found[0];
    }
  }

 private:
  static constexpr int kSize = 1 << kBits;
  static constexpr int kTables = kLanes < 8 || kSize <= kLanes ? 1 : kSize / kLanes;

  const float* values_;
  F32Vec tables_[kTables];
};

// [a, b, ...] -> [a, a, b, b, ...]
template <class Half>
HWY_INLINE F32Vec TwoLanesEach(Half v) {
  const hn::Repartition<uint64_t, decltype(kF32)> u64;
  const auto wide = hn::PromoteTo(u64, hn::BitCast(kU32Half, v));
  return hn::BitCast(kF32, hn::Or(wide, hn::ShiftLeft<32>(wide)));
}

// Decodes as many scales as D has lanes.
template <class D>
HWY_INLINE hn::Vec<D> Ue8m0Scales(D d, const uint8_t* codes) {
  const hn::RebindToUnsigned<D> u32;
  const hn::Rebind<uint8_t, D> u8;
  const auto smallest = hn::Set(u32, 0x00400000u);  // code 0 is 2^-127, a subnormal
  const auto top = hn::Set(u32, 0x7f800000u), nan = hn::Set(u32, 0x7fc00000u);
  const auto code = hn::PromoteTo(u32, hn::LoadU(u8, codes));
  const auto bits = hn::Max(hn::ShiftLeft<23>(code), smallest);
  return hn::BitCast(d, hn::IfThenElse(hn::Eq(bits, top), nan, bits));
}

// Placed in an f16 (exponent from bit 10), an e4m4 code reads as 2^-4 times its value, subnormals
// included.
template <class D>
HWY_INLINE hn::Vec<D> E4m4Scales(D d, const uint8_t* codes) {
  const hn::Rebind<uint8_t, D> u8;
  const hn::Rebind<uint16_t, D> u16;
  const hn::Rebind<hwy::float16_t, D> f16;
  const auto half = hn::ShiftLeft<6>(hn::PromoteTo(u16, hn::LoadU(u8, codes)));
  return hn::Mul(hn::PromoteTo(d, hn::BitCast(f16, half)), hn::Set(d, 16.f));
}

template <class D>
HWY_INLINE hn::Vec<D> E4m3Scales(D d, const uint8_t* codes) {
  const hn::Rebind<int8_t, D> i8;
  const hn::Rebind<int16_t, D> i16;
  const hn::Rebind<hwy::float16_t, D> f16;
  const auto code = hn::LoadU(i8, reinterpret_cast<const int8_t*>(codes));
  const auto half =
      hn::And(hn::ShiftLeft<7>(hn::PromoteTo(i16, code)), hn::Set(i16, int16_t{-0x4080}));
  const auto value = hn::Mul(hn::PromoteTo(d, hn::BitCast(f16, half)), hn::Set(d, 256.f));
  const auto is_nan = hn::Eq(hn::Abs(value), hn::Set(d, 480.f));
  return hn::IfThenElse(is_nan, hn::Set(d, e4m3_to_f32(0x7f)), value);
}

struct BlockDecoder : PlainDecoder {
  static constexpr bool kScaleSums = true;
  using PlainDecoder::PlainDecoder;
};

// clang-format off
constexpr float kE2M1[16] = {0.f,  0.5f,  1.f,  1.5f,  2.f,  3.f,  4.f,  6.f,
                             -0.f, -0.5f, -1.f, -1.5f, -2.f, -3.f, -4.f, -6.f};
// clang-format on

// Words of every lane's block; the codes of the next columns are in the lowest bits.
template <int kWords>
struct CodeWords {
  U32Vec word[kWords];
};

// e2m1: word m is columns 8 m, 8 m + 1, ... of the lane.
template <int kMaxWords>
struct E2m1Decoder : BlockDecoder {
  static constexpr int kBits = 4;
  using Codes = CodeWords<kMaxWords>;
  Lookup<4> table;

  explicit HWY_INLINE E2m1Decoder(const Weights& w) : BlockDecoder(w), table(kE2M1) {}

  template <int kCount>
  HWY_INLINE Codes load(const uint8_t* at, int64_t) const {
    Codes codes;
    Deinterleave<kCount / 8>(kU32, at, codes.word);
    return codes;
  }

  HWY_INLINE F32Vec value(Codes& codes, int v) const {
    U32Vec& word = codes.word[v / 8];
    const F32Vec values = table(word);
    word = hn::ShiftRight<4>(word);
    return values;
  }
};

struct DecodeMxfp4 : E2m1Decoder<4> {
  static constexpr int kVectors = 32, kHalfVectors = kHalfSteps ? 16 : 0, kGroup = kMxfp4Group;

  explicit HWY_INLINE DecodeMxfp4(const Weights& w) : E2m1Decoder(w) {}

  template <int kCount>
  static HWY_INLINE F32Vec scale(const uint8_t* codes) {
    if constexpr (kCount == kVectors) {
      return Ue8m0Scales(kF32, codes);
    } else {
      return TwoLanesEach(Ue8m0Scales(kF32Half, codes));
    }
  }
};

struct DecodeNvfp4 : E2m1Decoder<2> {
  static constexpr int kVectors = 16, kGroup = kNvfp4Group;

  explicit HWY_INLINE DecodeNvfp4(const Weights& w) : E2m1Decoder(w) {}

  template <int kCount>
  static HWY_INLINE F32Vec scale(const uint8_t* codes) {
    return E4m3Scales(kF32, codes);
  }
};

// Bit by bit: `yes` where the mask has a 1, else `no`. (Below AVX-512, IfVecThenElse selects by
// sign bits.)
HWY_INLINE U32Vec Select(uint32_t mask, U32Vec yes, U32Vec no) {
  const U32Vec bits = hn::Set(kU32, mask);
  return hn::Or(hn::And(bits, yes), hn::AndNot(bits, no));
}

// Converts bit planes to words: column q * W + m of a lane is field q (W bits wide) of word m,
// where W, the number of words, is 4 up to K = 4 and 8 for K = 5. Only the low K bits of a field
// are used.
template <int K>
HWY_INLINE CodeWords<K <= 4 ? 4 : 8> WordsOfPlanes(const U32Vec* plane) {
  CodeWords<K <= 4 ? 4 : 8> codes;
  // Bits 0 and 1 of the codes of even columns and of odd columns, in fields of 2 bits.
  const auto even = Select(0x55555555u, plane[0], hn::ShiftLeft<1>(plane[1]));
  const auto odd = Select(0x55555555u, hn::ShiftRight<1>(plane[0]), plane[1]);
  if constexpr (K == 2) {
    codes.word[0] = even, codes.word[2] = hn::ShiftRight<2>(even);
    codes.word[1] = odd, codes.word[3] = hn::ShiftRight<2>(odd);
  } else {
    auto high_even = plane[2], high_odd = hn::ShiftRight<1>(plane[2]);
    if constexpr (K > 3) {
      high_even = Select(0x55555555u, plane[2], hn::ShiftLeft<1>(plane[3]));
      high_odd = Select(0x55555555u, high_odd, plane[3]);
    }
    codes.word[0] = Select(0x33333333u, even, hn::ShiftLeft<2>(high_even));
    codes.word[1] = Select(0x33333333u, odd, hn::ShiftLeft<2>(high_odd));
    codes.word[2] = Select(0x33333333u, hn::ShiftRight<2>(even), high_even);
    codes.word[3] = Select(0x33333333u, hn::ShiftRight<2>(odd), high_odd);
  }
  if constexpr (K == 5) {
    const auto nibbles = [](U32Vec low, U32Vec bit4)
                             HWY_ATTR { return Select(0x0f0f0f0fu, low, bit4); };
    for (int m = 0; m < 4; ++m) codes.word[m + 4] = hn::ShiftRight<4>(codes.word[m]);
    codes.word[0] = nibbles(codes.word[0], hn::ShiftLeft<4>(plane[4]));
    codes.word[1] = nibbles(codes.word[1], hn::ShiftLeft<3>(plane[4]));
    codes.word[2] = nibbles(codes.word[2], hn::ShiftLeft<2>(plane[4]));
    codes.word[3] = nibbles(codes.word[3], hn::ShiftLeft<1>(plane[4]));
    codes.word[4] = nibbles(codes.word[4], plane[4]);
    codes.word[5] = nibbles(codes.word[5], hn::ShiftRight<1>(plane[4]));
    codes.word[6] = nibbles(codes.word[6], hn::ShiftRight<2>(plane[4]));
    codes.word[7] = nibbles(codes.word[7], hn::ShiftRight<3>(plane[4]));
  }
  return codes;
}

template <int K>
struct DecodeKbit : BlockDecoder {
  static constexpr int kVectors = 32, kHalfVectors = kHalfSteps ? 16 : 0;
  static constexpr int kBits = K, kGroup = kKbitBlock;
  static constexpr int kWords = K <= 4 ? 4 : 8;
  using Codes = CodeWords<kWords>;
  Lookup<K> table;

  explicit HWY_INLINE DecodeKbit(const Weights& w) : BlockDecoder(w), table(w.codebook) {}

  template <int kCount>
  HWY_INLINE Codes load(const uint8_t* at, int64_t) const {
    U32Vec plane[K];
    load_planes<kCount>(at, plane);
    return WordsOfPlanes<K>(plane);
  }

  HWY_INLINE F32Vec value(Codes& codes, int v) const {
    U32Vec& word = codes.word[v % kWords];
    const F32Vec values = table(word);
    word = hn::ShiftRight<kWords>(word);
    return values;
  }

  template <int kCount>
  static HWY_INLINE F32Vec scale(const uint8_t* codes) {
    if constexpr (kCount == kVectors) {
      return E4m4Scales(kF32, codes);
    } else {
      return TwoLanesEach(E4m4Scales(kF32Half, codes));
    }
  }

 private:
  // In a half step, plane[j] has the lower half of a word in one lane and the upper half in the
  // next.
  template <int kCount>
  static HWY_INLINE void load_planes(const uint8_t* at, U32Vec* plane) {
    if constexpr (kCount == kVectors) {
      Deinterleave<K>(kU32, at, plane);
    } else {
      const hn::Repartition<uint64_t, decltype(kU32)> u64;
      hn::Vec<decltype(kU32Half)> words[K];
      Deinterleave<K>(kU32Half, at, words);
      for (int j = 0; j < K; ++j) {
        const auto wide = hn::PromoteTo(u64, words[j]);
        plane[j] = hn::BitCast(kU32, hn::Or(wide, hn::ShiftLeft<16>(wide)));
      }
    }
  }
};

}  // namespace dsv4::gemm::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DSV4_OPS_GEMM_WEIGHTS_CPU_BLOCK_DECODE_INL_H_
