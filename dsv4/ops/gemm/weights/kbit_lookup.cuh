// Look-up of k-bit codes with any codebook, from bit planes to operands of tensor cores: a table in
// shared memory has all values of a byte of codes, with copies for the lanes, so that no two lanes
// of a load use the same bank (K = 5: at most two do). A lane has a whole block of 32 columns of a
// row, K words.
//
//   K = 2     a byte has the codes of 4 columns; an entry is two pairs of operands
//   K = 3, 4  of 2 columns (K = 3: two bits have no say); an entry is a pair
//   K = 5     of 2 columns without their top bits, which join the address: 1,024 pairs
//
// Planes become such bytes by shifts and selections of whole words, 4 to 16 instructions for 32
// codes, because the table may have its bits in any order:
//
//   byte b of word s (K > 2)   columns 8 b + 2 s and 8 b + 2 s + 1, bits 2 i, 2 i + 1 from plane i
//   byte b of word v (K = 2)   columns 8 b + 4 v .. + 3, low nibble from plane 0, high from plane 1
//
// An address is one byte permute. An operand is a codebook value times a power of two that brings
// the largest to the upper end of the operands' type, rounded, times the block's scale, rounded.
// What is left to multiply the sums with is `unit`.

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/lop3.cuh"
#include "dsv4/device/ptx/packed.cuh"
#include "dsv4/device/ptx/prmt.cuh"

namespace dsv4::gemm {

// Bits of `a` where the mask has ones, else of `b`.
template <uint32_t kMask>
__device__ inline uint32_t merge_bits(uint32_t a, uint32_t b) {
  return ptx::lop3<(0xf0 & 0xcc) | (~0xf0 & 0xaa)>(kMask, a, b);
}

// The K words of a block. from: aligned as their number allows, up to 16 bytes
template <int K>
__device__ inline void load_planes(const unsigned char* from, uint32_t (&plane)[K]) {
  if constexpr (K == 2) {
    const uint2 words = *reinterpret_cast<const uint2*>(from);
    plane[0] = words.x, plane[1] = words.y;
  } else if constexpr (K == 4) {
    const uint4 words = *reinterpret_cast<const uint4*>(from);
    plane[0] = words.x, plane[1] = words.y, plane[2] = words.z, plane[3] = words.w;
  } else {
#pragma unroll
    for (int i = 0; i < K; ++i) plane[i] = reinterpret_cast<const uint32_t*>(from)[i];
  }
}

template <int K, class X>
struct KbitLookup {
  static constexpr bool kIsF16 = std::is_same_v<X, f16>;
  static constexpr int kEntries = K == 5 ? 1024 : 256;
  static constexpr int kCopies = K == 5 ? 16 : 32;                // of the table, for as many lanes
  static constexpr int kEntryBytes = K == 5 ? 4 * kCopies : 256;  // with all copies
  static constexpr int kTableBytes = kEntries * kEntryBytes;
  // A scale byte times this is the scale as an operand in both halves of a word, over a power of
  // two: E4M4 has the exponent and the mantissa of f16 and of bf16, without their upper bits.
  static constexpr uint32_t kScaleUnit = kIsF16 ? 0x00400040u : 0x00080008u;
  // The exponent of the largest entry of the table. The factor that kScaleUnit leaves out (2^4 or
  // 2^116) is in it, and f16 has values down to 2^-24 of 2^14.
  static constexpr int kTopExponent = kIsF16 ? 13 : 116;
  static constexpr int kLeftOut = kIsF16 ? 4 : 116;

  // Words of a block, and what address() needs of plane 4.
  struct Codes {
    uint32_t word[K == 2 ? 2 : 4];
    uint32_t low[4];
  };

  // Before a barrier, by all threads of the CTA, whole warps: the codebook as operands. The result
  // is the unit of sums, as every thread gets it. book: [32] in shared memory
  static __device__ float fill_book(const float* codebook, uint16_t* book) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const float value = codebook[lane % (1 << K)];
    float largest = fabsf(value);
#pragma unroll
    for (int i = kWarp / 2; i > 0; i /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, i));
    // 2^exponent <= largest < 2^(exponent + 1), kept where the factor is a normal number.
    const int exponent =
        max(-100, min(100, static_cast<int>(__float_as_uint(largest) >> 23) - 127));
    const float scaled = ldexpf(value, kTopExponent - exponent);
    if (threadIdx.x < kWarp) {
      const uint32_t bits = kIsF16 ? ptx::pack_f16x2(scaled, 0.f) : ptx::pack_bf16x2(scaled, 0.f);
      book[lane] = static_cast<uint16_t>(bits);
    }
    return ldexpf(1.f, exponent + kLeftOut - kTopExponent);
  }

  // After it and before another barrier, by whole warps. A lane makes an entry; then the warp
  // stores the copies of 32 entries, 16 bytes a lane.
  static __device__ void fill(const uint16_t* book, unsigned char* table, int threads) {
    constexpr int kCopyBytes = K == 2 ? 256 : K == 5 ? kEntryBytes : 128;
    constexpr int kQuads = kCopyBytes / 16,
                  kTogether = kWarp / kQuads;  // lanes, entries of a store
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    for (int i = static_cast<int>(threadIdx.x); i < kEntries; i += threads) {
      uint32_t pair[2];
      make_entry(book, static_cast<uint32_t>(i), pair);
#pragma unroll
      for (int e = 0; e < kWarp; e += kTogether) {
        const int entry = e + lane / kQuads;
        const uint32_t low = __shfl_sync(~0u, pair[0], entry);
        const uint32_t high = K == 2 ? __shfl_sync(~0u, pair[1], entry) : low;
        reinterpret_cast<uint4*>(table + (i - lane + entry) * kEntryBytes)[lane % kQuads] =
            make_uint4(low, high, low, high);
      }
    }
  }

  // Both words are equal for K > 2.
  static __device__ void make_entry(const uint16_t* book, uint32_t index, uint32_t (&pair)[2]) {
    const auto at = [&](uint32_t code) { return static_cast<uint32_t>(book[code]); };
    const auto bit = [&](int from, int to) { return (index >> from & 1u) << to; };
    if constexpr (K == 2) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        pair[i] = at(bit(2 * i, 0) | bit(2 * i + 4, 1)) | at(bit(2 * i + 1, 0) | bit(2 * i + 5, 1))
                                                              << 16;
      }
    } else {
      constexpr int kByte = K < 5 ? 0 : 2;  // K = 5: below are the top bits of the codes
      uint32_t value[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        uint32_t code = bit(kByte + c, 0) | bit(kByte + 2 + c, 1) | bit(kByte + 4 + c, 2);
        if constexpr (K > 3) code |= bit(kByte + 6 + c, 3);
        if constexpr (K == 5) code |= bit(c, 4);
        value[c] = at(code);
      }
      pair[0] = pair[1] = value[0] | value[1] << 16;
    }
  }

  // The bytes of an address that the lane decides.
  static __device__ uint32_t lane_bytes() {
    const uint32_t lane = threadIdx.x % kWarp;
    if constexpr (K == 2) return lane * 8;
    if constexpr (K == 5) return lane % kCopies * 0x04040404u;
    return lane * 4;
  }

  static __device__ Codes codes(const uint32_t (&plane)[K], uint32_t lane_bytes) {
    Codes c;
    if constexpr (K == 2) {
      c.word[0] = merge_bits<0x0f0f0f0f>(plane[0], plane[1] << 4);
      c.word[1] = merge_bits<0x0f0f0f0f>(plane[0] >> 4, plane[1]);
    } else {
      const uint32_t even = merge_bits<0x33333333>(plane[0], plane[1] << 2);
      const uint32_t odd = merge_bits<0x33333333>(plane[0] >> 2, plane[1]);
      if constexpr (K == 3) {
        c.word[0] = merge_bits<0x0f0f0f0f>(even, plane[2] << 4);
        c.word[1] = merge_bits<0x0f0f0f0f>(odd, plane[2] << 2);
        c.word[2] = merge_bits<0x0f0f0f0f>(even >> 4, plane[2]);
        c.word[3] = merge_bits<0x0f0f0f0f>(odd >> 4, plane[2] >> 2);
      } else {
        const uint32_t high_even = merge_bits<0x33333333>(plane[2], plane[3] << 2);
        const uint32_t high_odd = merge_bits<0x33333333>(plane[2] >> 2, plane[3]);
        c.word[0] = merge_bits<0x0f0f0f0f>(even, high_even << 4);
        c.word[1] = merge_bits<0x0f0f0f0f>(odd, high_odd << 4);
        c.word[2] = merge_bits<0x0f0f0f0f>(even >> 4, high_even);
        c.word[3] = merge_bits<0x0f0f0f0f>(odd >> 4, high_odd);
      }
      if constexpr (K == 5) {
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          const uint32_t top = 2 * s < 6 ? plane[4] << (6 - 2 * s) : plane[4];
          c.low[s] = merge_bits<0xc0c0c0c0>(top, lane_bytes);
        }
      }
    }
    return c;
  }

  // Columns 4 t .. 4 t + 3 of the block as two pairs, without the scale. t: a constant
  static __device__ void look_up(const Codes& c, int t, uint32_t lane_bytes,
                                 const unsigned char* table, uint32_t (&pair)[2]) {
    const auto byte = static_cast<uint32_t>(t / 2);
    if constexpr (K == 2) {
      const uint2 entry = *reinterpret_cast<const uint2*>(
          table + ptx::prmt(lane_bytes, c.word[t % 2], 0x1100u | (4 + byte) << 4));
      pair[0] = entry.x, pair[1] = entry.y;
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int s = t % 2 * 2 + i;
        uint32_t at;
        if constexpr (K < 5) {
          at = ptx::prmt(lane_bytes, c.word[s], 0x1100u | (4 + byte) << 4);
        } else {
          at = ptx::prmt(c.low[s], c.word[s], byte | (4 + byte) << 4) & 0xffffu;
        }
        pair[i] = *reinterpret_cast<const uint32_t*>(table + at);
      }
    }
  }

  static __device__ uint32_t scaled(uint32_t pair, uint32_t scale) {
    if constexpr (kIsF16) {
      return ptx::as_bits(__hmul2(ptx::as_half2(pair), ptx::as_half2(scale)));
    } else {
      return ptx::as_bits(__hmul2(ptx::as_bf162(pair), ptx::as_bf162(scale)));
    }
  }
};

}  // namespace dsv4::gemm
