// The kernel image of a k-bit or FP4 weight: the codes and scales of the file (kbit.h, weight.h) in
// the order in which tensor cores read them. It is a reversible permutation, made once at load;
// docs/kernels/kbit_image.md has a picture.
//
//   unit    16 rows x 256 columns: K 16-byte vectors for each of 32 lanes, then the scales
//             codes    [K][32 lanes][16 bytes]
//             scales   [8 g][blocks][2 h]       row g + 8h, 8 blocks of 32 or 16 of 16 columns
//   image   [strips of 16 rows][k/256] units: a strip is one run of bytes, and so is a slice of k
//           of it; n is padded to 16 rows, k to 256, with zero bytes
//
// Lane l = 4g + t holds the elements of A that mma.sync m16n8k16 and wgmma m64nNk16 (A in
// registers; a strip for each warp) require of it, with k in natural order.
// Its 4K words, in vectors of four, are the codes of four steps of 64 columns; step j uses words Kj
// .. Kj+K-1. A step is four groups i (k16 each) of eight codes; code q = 4h + 2c + p is
//
//   row g + 8h,  column 64 j + 16 i + 2t + 8c + p
//
// and is nibble q of a word. Two neighboring nibbles, byte b = 2h + c of the word, make register
// h + 2c of a 16-bit A fragment; four, half h of the word, make register h + 2 (i % 2) of an e4m3
// fragment of two groups, whose k is in the order of the nibbles:
//
//   K = 2   word i/2, bits 0-1 (even i) or 2-3 (odd i) of the nibble
//   K = 3   words 0-2: bits 0-2 of the nibble, group i = word; group 3: bit b in bit 3 of word b
//   K = 4   word i: bits 0-2 of the nibble; bit 3 is bit 8 (2c + p) + 7 - 4h
//   K = 5   word i holds bits 0-3; bit 4 of half p of byte b is bit 4i + b + 16p of word 4
//
// Codes of an antisymmetric codebook are stored as sign (top bit) and magnitude index, other codes
// unchanged. At K = 4 the signs of an e4m3 register are 8 bits apart, as in the register; at K = 5
// those of a 16-bit register are 16 bits apart. With two weights (gate, up), rows 0-7 of a unit are
// gate's and 8-15 up's: row 8u + g of both is in one lane, and SwiGLU needs no exchange. Source:
// docs/spec/lowbit.md 4.2, 4.5; PTX ISA, "Matrix fragments for mma.m16n8k16".
//
// An FP4 weight is an image of K = 4: a nibble of the file is sign and magnitude index already.
// Only its scales differ, by a byte of MXFP4 for 32 columns or of NVFP4 for 16 (ImageScale).

#pragma once

#include <cstdint>

#include "dsv4/formats/kbit.h"

namespace dsv4 {

// The scale byte of a block.
enum class ImageScale : uint8_t {
  kE4M4,   // k-bit, 32 columns
  kUe8m0,  // MXFP4, 32 columns
  kE4M3    // NVFP4, 16 columns
};
DSV4_HD constexpr int block_columns(ImageScale scale) {
  return scale == ImageScale::kE4M3 ? 16 : kKbitBlock;
}

// An exponent byte of MXFP4 folds into e4m3 operands without rounding where it is at most so far
// below the largest of its weight: e4m3 has 15 exponents of normal numbers, and e2m1 takes four.
inline constexpr int kFoldedSpan = 11;

struct KbitImage {
  static constexpr int kUnitRows = 16, kUnitColumns = 256, kLanes = 32;
  static constexpr int kStepColumns = 64, kSteps = kUnitColumns / kStepColumns;
  static constexpr int kLaneCodes = 32;  // of one lane in one step: 4 groups of 8
  // Kernels have an instance for each kind: K = 2 .. 5, MXFP4, NVFP4.
  static constexpr int kKinds = kMaxKbit - kMinKbit + 3;

  int64_t n = 0, k = 0;  // rows (of gate and up together where interleaved), columns
  int bits = 0;
  bool sign_magnitude = false;
  ImageScale scale = ImageScale::kE4M4;

  DSV4_HD constexpr bool is_fp4() const { return scale != ImageScale::kE4M4; }
  DSV4_HD constexpr int kind() const {
    return is_fp4() ? kMaxKbit - kMinKbit + static_cast<int>(scale) : bits - kMinKbit;
  }
  DSV4_HD constexpr int unit_blocks() const { return kUnitColumns / block_columns(scale); }
  DSV4_HD constexpr int scale_bytes() const { return kUnitRows * unit_blocks(); }  // of a unit
  DSV4_HD constexpr int64_t unit_bytes() const {
    return int64_t{16} * kLanes * bits + scale_bytes();
  }
  DSV4_HD constexpr int64_t num_strips() const { return ceil_div(n, kUnitRows); }
  DSV4_HD constexpr int64_t units_along_k() const { return ceil_div(k, kUnitColumns); }
  DSV4_HD constexpr int64_t strip_bytes() const { return units_along_k() * unit_bytes(); }
  DSV4_HD constexpr int64_t bytes() const { return num_strips() * strip_bytes(); }
  // The unit of rows 16 u .. 16 u + 15 and columns 256 c .. 256 c + 255.
  DSV4_HD constexpr int64_t unit_offset(int64_t u, int64_t c) const {
    return u * strip_bytes() + c * unit_bytes();
  }
  // Word `i` (0 .. 4K-1) of a lane, from the start of the unit.
  DSV4_HD static constexpr int64_t word_offset(int lane, int i) {
    return (int64_t{i / 4} * kLanes + lane) * 16 + i % 4 * 4;
  }
  DSV4_HD constexpr int64_t scale_offset(int row, int block) const {
    return int64_t{16} * kLanes * bits + (row % 8) * 2 * unit_blocks() + block * 2 + row / 8;
  }
};
static_assert(KbitImage{64, 256, 4}.bytes() == 64 * 256 / 2 + 64 * 8);  // the flat layout's size
template <int K, ImageScale kScale = ImageScale::kE4M4>
inline constexpr int kUnitBytes =
    static_cast<int>(KbitImage{.bits = K, .scale = kScale}.unit_bytes());
static_assert(KbitImage{.bits = 4, .scale = ImageScale::kE4M3}.kind() == KbitImage::kKinds - 1);

// The position of code e = 8i + q of lane l, in the unit's 16 rows and the step's 64 columns.
struct KbitFragment {
  int row, column;
};
DSV4_HD constexpr KbitFragment kbit_fragment(int lane, int e) {
  const int i = e / 8, h = e % 8 / 4, c = e % 4 / 2, p = e % 2;
  return {lane / 4 + 8 * h, 16 * i + 2 * (lane % 4) + 8 * c + p};
}

// Sorted code <-> sign and magnitude index of an antisymmetric codebook; its own inverse up to the
// inverted top bit: 1m -> 0m, 0m -> 1(~m).
DSV4_HD constexpr uint8_t kbit_to_sign_magnitude(uint8_t code, int bits) {
  const int top = 1 << (bits - 1);
  return static_cast<uint8_t>((code & top) != 0 ? code - top : 2 * top - 1 - code);
}
DSV4_HD constexpr uint8_t kbit_from_sign_magnitude(uint8_t code, int bits) {
  const int top = 1 << (bits - 1);
  return static_cast<uint8_t>((code & top) != 0 ? 2 * top - 1 - code : code + top);
}

// The register of a 16-bit A fragment that byte b of a word makes.
DSV4_HD constexpr int kbit_register(int b) {
  return b / 2 + b % 2 * 2;
}

// The bit of the lane's words that holds bit b of code e = 8i + q.
struct KbitPlace {
  int word, bit;
};
DSV4_HD constexpr KbitPlace kbit_place(int bits, int e, int b) {
  const int i = e / 8, q = e % 8;
  if (bits == 2) return {i / 2, 4 * q + 2 * (i % 2) + b};
  if (bits == 3) return i == 3 ? KbitPlace{b, 4 * q + 3} : KbitPlace{i, 4 * q + b};
  if (bits == 4 && b == 3) return {i, 8 * (q % 4) + 7 - q / 4 * 4};
  if (b == 4) return {4, 4 * i + q / 2 + q % 2 * 16};
  return {i, 4 * q + b};
}

// codes: [32] of one lane and step, e = 8i + q -> words: [bits]; and back.
DSV4_HD constexpr void pack_kbit_lane(const uint8_t* codes, int bits, uint32_t* words) {
  for (int i = 0; i < bits; ++i) words[i] = 0;
  for (int e = 0; e < KbitImage::kLaneCodes; ++e) {
    for (int b = 0; b < bits; ++b) {
      const KbitPlace at = kbit_place(bits, e, b);
      words[at.word] |= ((codes[e] >> b) & uint32_t{1}) << at.bit;
    }
  }
}
DSV4_HD constexpr void unpack_kbit_lane(const uint32_t* words, int bits, uint8_t* codes) {
  for (int e = 0; e < KbitImage::kLaneCodes; ++e) {
    uint32_t code = 0;
    for (int b = 0; b < bits; ++b) {
      const KbitPlace at = kbit_place(bits, e, b);
      code |= ((words[at.word] >> at.bit) & 1u) << b;
    }
    codes[e] = static_cast<uint8_t>(code);
  }
}

// For decoders of a lane's words of one step: the codes of group i as nibbles, code q in nibble q;
// at K = 4 and 5 without their signs. Of a constant `bits` few instructions remain.
DSV4_HD constexpr uint32_t kbit_nibbles(const uint32_t* words, int bits, int i) {
  if (bits == 2) return (words[i / 2] >> (2 * (i % 2))) & 0x33333333u;
  if (bits == 4) return words[i] & 0x77777777u;
  if (bits == 5) return words[i];
  if (i < 3) return words[i] & 0x77777777u;
  return ((words[0] >> 3) & 0x11111111u) | ((words[1] >> 2) & 0x22222222u) |
         ((words[2] >> 1) & 0x44444444u);
}
// K = 4 and 5: the signs of codes 2b and 2b + 1 of group i, in bits 15 and 31.
DSV4_HD constexpr uint32_t kbit_signs(const uint32_t* words, int bits, int i, int b) {
  if (bits == 5) return (words[4] << (15 - 4 * i - b)) & 0x80008000u;
  const uint32_t pair = ((words[i] << (b / 2 * 4)) >> (b % 2 * 16)) & 0x8080u;
  return (pair * 0x10100u) & 0x80008000u;
}
// K = 4: the signs of codes 4h .. 4h + 3 of group i, in bits 7, 15, 23 and 31.
DSV4_HD constexpr uint32_t kbit_byte_signs(const uint32_t* words, int i, int h) {
  return (words[i] << (4 * h)) & 0x80808080u;
}

}  // namespace dsv4
