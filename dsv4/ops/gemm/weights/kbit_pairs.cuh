// Decoding of k-bit weights to pairs of 16-bit operands, with any codebook: two codes are looked up
// at once, and the scale is one packed multiplication. For small_m.cuh, instead of a look-up and a
// conversion for each weight (decode.cuh).
//
//   K = 2, 3  the low and the high bytes of the codebook are registers; a nibble of codes selects
//             one of each (prmt), two more put them together: 4 permutes for 4 weights
//   K = 4     a table of all pairs in shared memory, a copy for each lane: an address, a load
//   K = 5     the same with 16 copies; bit 4 of two codes joins the byte of their other bits
//
// A pair has columns c and c + 4, as gather_nibbles() leaves them, so x is in that order too: word
// w of piece p of a unit has columns
//
//   16 (p / 2) + 2 (p % 2) + w / 2 + 8 (w % 2), and 4 more
//
// Rounded twice: the codebook to the operands' type, and its product with the scale.

#pragma once

#include <type_traits>

#include "dsv4/device/ptx/packed.cuh"
#include "dsv4/ops/gemm/cuda/operand.cuh"
#include "dsv4/ops/gemm/weights/decode.cuh"

namespace dsv4::gemm::cuda {

// The first column of word w of piece p.
__device__ constexpr int pair_column(int p, int w) {
  return 16 * (p / 2) + 2 * (p % 2) + w / 2 + 8 * (w % 2);
}

template <class X>
__device__ inline uint32_t multiply_pair(uint32_t a, uint32_t b) {
  if constexpr (std::is_same_v<X, f16>) {
    return ptx::as_bits(__hmul2(ptx::as_half2(a), ptx::as_half2(b)));
  } else {
    return ptx::as_bits(__hmul2(ptx::as_bf162(a), ptx::as_bf162(b)));
  }
}

// What a thread needs of the codebook of K = 2 and 3: byte i of the low and the high bytes.
struct ByteTable {
  uint32_t low[2], high[2];
};

template <int K, class X>
struct KbitPairs {
  static constexpr int kColumns = kKbitBlock, kPieces = kColumns / 8;
  static constexpr bool kInRegisters = K <= 3;
  static constexpr int kCopies = K == 4 ? 32 : 16;
  static constexpr int kTableWords = kInRegisters ? 0 : (1 << 2 * K) * kCopies;
  using Loaded = KbitUnit<K>;
  using Table = std::conditional_t<kInRegisters, ByteTable, const uint32_t*>;
  struct Codes {
    uint32_t nibble[4];
    uint32_t top[4];  // K = 5: byte q has bits 4 of the two codes of byte q of the nibbles
    uint32_t scale;   // twice
  };

  static __device__ Loaded load(const Matrix& w, int64_t row, int64_t unit) {
    return DecodeKbit<K>::load(w, row, unit);
  }

  // Before a barrier, by all threads of the CTA. to: [kTableWords], entry i of copy c at
  // i * kCopies + c
  static __device__ void fill(const float* codebook, uint32_t* to, int threads) {
    for (int i = static_cast<int>(threadIdx.x); i < kTableWords; i += threads) {
      const int pair = i / kCopies;
      // The lower four bits of both codes, then the fifth of both.
      const int first = (pair & 15) | (pair >> 8 & 1) << 4;
      const int second = (pair >> 4 & 15) | (pair >> 9 & 1) << 4;
      to[i] = operand_pair<X>(codebook[first], codebook[second]);
    }
  }
  // After it; table: of this lane
  static __device__ Table table(const float* codebook, const uint32_t* filled) {
    if constexpr (kInRegisters) {
      ByteTable bytes{};
#pragma unroll
      for (int i = 0; i < 1 << K; ++i) {
        const uint32_t value = operand_pair<X>(codebook[i], 0.f);
        bytes.low[i / 4] |= (value & 0xffu) << (i % 4 * 8);
        bytes.high[i / 4] |= (value >> 8) << (i % 4 * 8);
      }
      return bytes;
    } else {
      return filled + threadIdx.x % kCopies;
    }
  }

  static __device__ Codes codes(const Loaded& u, const Matrix&) {
    Codes c;
    gather_nibbles<K>(u.plane, c.nibble);
    if constexpr (K == 5) {
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const uint32_t bits = u.plane[4] >> m & 0x11111111u;
        c.top[m] = (bits | bits >> 3) & 0x03030303u;
      }
    }
    const float scale = e4m4_to_f32(u.scale);
    c.scale = operand_pair<X>(scale, scale);
    return c;
  }

  static __device__ void operands(const Codes& c, int piece, const Table& table,
                                  uint32_t (&out)[4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int m = 2 * (piece % 2) + half;
      uint32_t pair[2];
      if constexpr (kInRegisters) {
        const uint32_t select = piece < 2 ? c.nibble[m] : c.nibble[m] >> 16;
        const uint32_t low = __byte_perm(table.low[0], table.low[1], select);
        const uint32_t high = __byte_perm(table.high[0], table.high[1], select);
        pair[0] = __byte_perm(low, high, 0x5140), pair[1] = __byte_perm(low, high, 0x7362);
      } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t byte = static_cast<uint32_t>(2 * (piece / 2) + i);
          uint32_t index = __byte_perm(c.nibble[m], 0, 0x4440u + byte);
          if constexpr (K == 5)
            index = __byte_perm(c.nibble[m], c.top[m], byte | (4 + byte) << 4) & 0xffffu;
          pair[i] = table[index * kCopies];
        }
      }
      out[2 * half] = multiply_pair<X>(pair[0], c.scale);
      out[2 * half + 1] = multiply_pair<X>(pair[1], c.scale);
    }
  }
};

}  // namespace dsv4::gemm::cuda
