// Weights as bit planes (formats/kbit.h) with an e4m3_codebook(), times e4m3 codes, without an
// image: a lane takes whole blocks of 32 columns, so that planes become bytes by shifts and logic.
//
//   lane 4g + b   block b of a group of 128 columns, of rows g and g + 8 of the warp's 16: its
//                 codes are the lane's A registers of four wgmma m64nNk32, each of which has 8
//                 columns of every block
//   column        8 (token / 2) + 2b + token % 2 of the product: token and block b, whose x has
//                 zeros for the other blocks. So a lane has the sums of its own block, and
//                 multiplies them with the scales of that block alone
//
// With activations in f16 each of the codes' registers becomes two, and an A fragment of one
// m64nNk16, of which there are eight: 4 columns of every block each.
//
// Sorted codes become sign and magnitude; the planes of the magnitude's index are transposed as
// 4 x 4 bits, so that a nibble is an index.
//
//   K = 5   the magnitudes of e4m3_codebook(5) are 2i + 1 as an e4m3 code, i = 0 .. 15: a byte is
//           the sign, the four bits of i and a one
//   K = 4   a byte permute finds four of eight magnitudes
//
// docs/kernels/gemm_kbit_planes.md has the reasons.

#pragma once

#include <cuda_fp16.h>

#include "dsv4/device/ptx/convert.cuh"
#include "dsv4/device/ptx/lop3.cuh"
#include "dsv4/device/ptx/prmt.cuh"
#include "dsv4/device/ptx/smem_desc.cuh"
#include "dsv4/device/ptx/wgmma.cuh"
#include "dsv4/ops/gemm/sm90/small_m/config.cuh"

namespace dsv4::gemm {

// Bits of `a` where the mask has ones, else of `b`.
__device__ inline uint32_t select_bits(uint32_t mask, uint32_t a, uint32_t b) {
  return ptx::lop3<(0xf0 & 0xcc) | (~0xf0 & 0xaa)>(mask, a, b);
}

// Transposes the bits of four words as 4 x 4: nibble j of word i is then of column i + 4j.
__device__ inline void transpose_bits(uint32_t (&index)[4]) {
#pragma unroll
  for (int p = 0; p < 4; p += 2) {
    const uint32_t even = index[p], odd = index[p + 1];
    index[p] = select_bits(0x55555555, even, odd << 1);
    index[p + 1] = select_bits(0x55555555, even >> 1, odd);
  }
#pragma unroll
  for (int p = 0; p < 2; ++p) {
    const uint32_t low = index[p], high = index[p + 2];
    index[p] = select_bits(0x33333333, low, high << 2);
    index[p + 2] = select_bits(0x33333333, low >> 2, high);
  }
}

// The first half of decoding: planes become nibbles of the magnitudes' indices (the lower bits of
// the codes, inverted below zero) and signs. K = 4: nothing, since signs have no room.
__device__ inline void order_planes(uint32_t (&planes)[5]) {
  const uint32_t minus = ~planes[4];
  uint32_t index[4];
#pragma unroll
  for (int p = 0; p < 4; ++p) index[p] = planes[p] ^ minus;
  transpose_bits(index);
#pragma unroll
  for (int p = 0; p < 4; ++p) planes[p] = index[p];
  planes[4] = minus;
}
__device__ inline void order_planes(uint32_t (&)[4]) {
}

// Ordered planes of a block. Byte j of codes[i] is the e4m3 code of column i + 8j.
__device__ inline void decode_planes(const uint32_t (&ordered)[5], uint32_t (&codes)[8]) {
  const uint32_t(&index)[5] = ordered;
  const uint32_t minus = ordered[4];
  const auto bytes = [](uint32_t magnitudes, uint32_t signs) {
    const uint32_t all = select_bits(0x80808080, signs, magnitudes);
    return ptx::lop3<(0xf0 & 0xcc) | 0xaa>(all, 0x9e9e9e9e, 0x01010101);
  };
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    codes[i] = bytes(index[i] << 1, minus << (7 - i));
    codes[i + 4] = bytes(index[i] >> 3, minus << (3 - i));
  }
}

// The magnitudes of e4m3_codebook(4), 11/256 .. 1, as e4m3 codes: a byte permute finds them by the
// three bits of an index.
inline constexpr uint32_t kMagnitudes[] = {0x2a262013, 0x3834312e};

// Byte j of codes[i] is the e4m3 code of column i + 4j; of codes[i + 4], of column i + 4j + 16.
__device__ inline void decode_planes(const uint32_t (&planes)[4], uint32_t (&codes)[8]) {
  const uint32_t minus = ~planes[3];
  uint32_t index[4] = {planes[0] ^ minus, planes[1] ^ minus, planes[2] ^ minus, 0};
  transpose_bits(index);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // The upper nibble of byte j: nibble j of this half of the signs.
    const uint32_t twice = ptx::prmt(minus, 0, half == 0 ? 0x1100 : 0x3322);
    const uint32_t signs = select_bits(0x00f000f0, twice << 4, twice);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t magnitudes =
          ptx::prmt(kMagnitudes[0], kMagnitudes[1], half == 0 ? index[i] : index[i] >> 16);
      codes[i + 4 * half] = select_bits(0x80808080, signs << (3 - i), magnitudes);
    }
  }
}

// E4M4 scales of a lane's rows. Four lanes hold those of four slabs, and the next four are on their
// way: they come from memory, not through the ring.
class PlaneScales {
 public:
  static constexpr int kSlabs = 4;

  // Loads the scales of slabs first .. first + 3 of the rank; advance() makes them those in use.
  template <class P>
  __device__ void request(const P& params, const Share& share, const Tile& tile, int first) {
    request(params.matrix[tile.matrix], tile, share.first_slab + first,
            share.first_slab + share.slabs, static_cast<int>(threadIdx.x));
  }
  // Loads the scales of slabs `first` .. up to `end` of the matrix. thread: its index among the
  // threads that have the tile.
  __device__ void request(const Matrix& matrix, const Tile& tile, int first, int end, int thread) {
    const int slab = first + thread % 4;
    const int row = thread / kWarp * 16 + thread % kWarp / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      next_[half] = {};
      if (slab >= end) continue;
      const auto* scales = static_cast<const uint8_t*>(matrix.scale) +
                           (tile.row + min(row + 8 * half, tile.count - 1)) * matrix.scale_stride;
      next_[half] = reinterpret_cast<const uint2*>(scales)[slab];
    }
  }
  __device__ void advance() {
    held_[0] = next_[0], held_[1] = next_[1];
  }

  // Returns the scales of rows g and g + 8 for the lane's block of group 0 or 1 of a slab, divided
  // by 16; the 16 is in Matrix::factor.
  __device__ float2 of_group(int slab, int group) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int from = lane / 4 * 4 + slab % kSlabs;
    const uint32_t selectors = 0x4400 + lane % 4 * 0x1111;  // the byte of each row, twice
    const uint32_t upper = __shfl_sync(~0u, group == 0 ? held_[0].x : held_[0].y, from);
    const uint32_t lower = __shfl_sync(~0u, group == 0 ? held_[1].x : held_[1].y, from);
    const uint32_t two_scales = (ptx::prmt(upper, lower, selectors) & 0x00ff00ff) << 6;
    return __half22float2(reinterpret_cast<const __half2&>(two_scales));
  }

 private:
  uint2 held_[2], next_[2];
};

// The lane's blocks of kGroups groups of a slab, from group `first_group` on: rows g and g + 8.
template <class C, int kGroups>
struct Planes {
  uint32_t words[kGroups][2][C::kBits];

  // Ordered, or as the file has them.
  __device__ Planes(const unsigned char* slab, int first_group, int thread) {
    const auto* const first = place(slab, first_group, thread);
#pragma unroll
    for (int i = 0; i < kCount; ++i) at(i) = first[offset(i)];
  }
  __device__ void order() {
#pragma unroll
    for (int i = 0; i < 2 * kGroups; ++i) order_planes(words[i / 2][i % 2]);
  }
  // Back to where they were.
  __device__ void store(unsigned char* slab, int first_group, int thread) {
    auto* const first = const_cast<uint32_t*>(place(slab, first_group, thread));
#pragma unroll
    for (int i = 0; i < kCount; ++i) first[offset(i)] = at(i);
  }

 private:
  static constexpr int kBlockWords = C::kBits, kRowWords = C::kBoxColumns;
  static constexpr int kCount = kGroups * 2 * C::kBits;

  __device__ static const uint32_t* place(const unsigned char* slab, int first_group, int thread) {
    const int lane = thread % kWarp;
    return reinterpret_cast<const uint32_t*>(slab) + (thread / kWarp * 16 + lane / 4) * kRowWords +
           (first_group * kBlocks + lane % 4) * kBlockWords;
  }
  __device__ static constexpr int offset(int i) {
    const int word = i % C::kBits, half = i / C::kBits % 2, group = i / C::kBits / 2;
    return 8 * half * kRowWords + group * kBlocks * kBlockWords + word;
  }
  __device__ uint32_t& at(int i) {
    return words[i / C::kBits / 2][i / C::kBits % 2][i % C::kBits];
  }
};

// Orders slabs in the ring in place, before the wait for the previous kernel; slab(i) waits for
// one. Whoever does so executes a proxy fence before it releases the stage. Returns how many are
// ordered.
template <class C, class Slab>
__device__ int order_slabs(int count, int thread, const Slab& slab) {
  if constexpr (C::kBits == 5) {
#pragma unroll 1
    for (int i = 0; i < count * C::kGroups; ++i) {
      unsigned char* const planes = slab(i / C::kGroups);
      Planes<C, 1> words(planes, i % C::kGroups, thread);
      words.order();
      words.store(planes, i % C::kGroups, thread);
    }
    return count;
  } else {
    return 0;
  }
}

// part += the products of a group of 128 columns; x: of the group. Returns without waiting.
template <class C>
__device__ void multiply_planes(const uint32_t (&words)[2][C::kBits], uint32_t x,
                                uint32_t (&a)[C::kXBoxes][4], float (&part)[2 * C::kTokens]) {
  constexpr bool kF16 = converts_to_f16(C::kFormat);
  using T = std::conditional_t<kF16, f16, __nv_fp8_e4m3>;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t codes[8];
    decode_planes(words[half], codes);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if constexpr (kF16) {
        ptx::cvt_e4m3x4_to_f16x2(codes[i], a[i][half], a[i][half + 2]);
      } else {
        a[i % 4][i / 4 * 2 + half] = codes[i];
      }
    }
  }
  ptx::wgmma_fence();
#pragma unroll
  for (int i = 0; i < C::kXBoxes; ++i) {
    const uint64_t b = ptx::make_smem_desc_128B(x + i / 4 * kBlocks * C::kTokens * kSlabBytes);
    ptx::Wgmma<T, kBlocks * C::kTokens>::run(part, a[i], ptx::advance_desc(b, i % 4 * 32), i > 0);
  }
  ptx::wgmma_commit_group();
}

// sums += the products of a group, of the lane's block. scale: of its two rows; x_scale: of the
// group.
template <int kTokens>
__device__ void promote_planes(const float (&part)[2 * kTokens], float2 scale, const float* x_scale,
                               float (&sums)[kTokens / 2][4]) {
#pragma unroll
  for (int n = 0; n < kTokens / 2; ++n) {
    const float2 x = reinterpret_cast<const float2*>(x_scale)[n];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float factor = (i < 2 ? scale.x : scale.y) * (i % 2 == 0 ? x.x : x.y);
      sums[n][i] = fmaf(part[4 * n + i], factor, sums[n][i]);
    }
  }
}

// sums += the products of slab `slab` of the rank, `planes` in the ring. x, x_scale: of its first
// group, whose scales are kScales apart. ordered: whether the planes are. kAtOnce: groups whose
// products are in flight together. release() runs when the slab has been read.
template <class C, int kAtOnce, int kScales = C::kTokens, class Release>
__device__ void add_slab(const unsigned char* planes, int slab, uint32_t x, const float* x_scale,
                         const PlaneScales& scales, float (&sums)[C::kTokens / 2][4], int thread,
                         bool ordered, const Release& release) {
#pragma unroll
  for (int first = 0; first < C::kGroups; first += kAtOnce) {
    Planes<C, kAtOnce> words(planes, first, thread);
    if (!ordered) words.order();
    uint32_t a[kAtOnce][C::kXBoxes][4];
    float part[kAtOnce][2 * C::kTokens];
    float2 scale[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      multiply_planes<C>(words.words[i], x + (first + i) * C::kXBytes, a[i], part[i]);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) scale[i] = scales.of_group(slab, first + i);
    // Not sooner: the words must be in registers (docs/lessons.md).
    if (first + kAtOnce == C::kGroups) release();
    ptx::wgmma_wait_group<0>();
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      ptx::wgmma_fence_operand(part[i]);
      promote_planes<C::kTokens>(part[i], scale[i], x_scale + (first + i) * kScales, sums);
    }
  }
}

// Sums of the four blocks, as wgmma would leave them for tokens as columns: the lane b of four has
// tokens 2b and 2b + 1, or every lane tokens 0 and 1. (0 + 2) + (1 + 3), however many tokens.
template <int kTokens>
__device__ void add_blocks(float (&parts)[kTokens / 2][4], float (&sums)[4]) {
  const int block = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kTokens == 2) {
      const float two = parts[0][i] + __shfl_xor_sync(~0u, parts[0][i], 2);
      sums[i] = two + __shfl_xor_sync(~0u, two, 1);
    } else {
      static_assert(kTokens == 8);
      float two[2];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float kept = block < 2 ? parts[n][i] : parts[n + 2][i];
        const float sent = block < 2 ? parts[n + 2][i] : parts[n][i];
        two[n] = kept + __shfl_xor_sync(~0u, sent, 2);
      }
      const float kept = block % 2 == 0 ? two[0] : two[1];
      const float sent = block % 2 == 0 ? two[1] : two[0];
      sums[i] = kept + __shfl_xor_sync(~0u, sent, 1);
    }
  }
}

}  // namespace dsv4::gemm
