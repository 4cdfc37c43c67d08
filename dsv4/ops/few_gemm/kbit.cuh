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
// docs/kernels/few_gemm_kbit.md has the reasons.

#pragma once

#include <cuda_fp16.h>

#include "dsv4/device/ptx/convert.cuh"
#include "dsv4/device/ptx/prmt.cuh"
#include "dsv4/device/ptx/smem_desc.cuh"
#include "dsv4/device/ptx/wgmma.cuh"
#include "dsv4/ops/few_gemm/config.cuh"
#include "dsv4/ops/few_gemm/decode_planes.cuh"

namespace dsv4::few_gemm {

inline constexpr int kBlock = 32, kBlocks = kScaleColumns / kBlock;

// The column of the product: a row of x in shared memory.
__device__ inline int row_of_block(int token, int block) {
  return token / 2 * 8 + 2 * block + token % 2;
}

// Where column `i` of the columns 8 run .. 8 run + 7 of a group is multiplied: by byte `byte` of
// codes[word].
struct PlanePlace {
  int word, byte;
};
template <int K>
__device__ constexpr PlanePlace plane_place(int run, int i) {
  if constexpr (K == 5) return {i, run % 4};
  return {i % 4 + run % 4 / 2 * 4, run % 2 * 2 + i / 4};
}

// Stores the 8 codes of those columns: word w is of product w % 4, half w / 4.
template <int K>
__device__ void store_blocks(unsigned char* group, int token, int run, uint2 codes) {
  const int block = run / 4, row = row_of_block(token, block);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const PlanePlace at = plane_place<K>(run, i);
    const int chunk = (at.word % 4 * 2 + at.word / 4) ^ (row % 8);
    group[row * kSlabBytes + chunk * 16 + block * 4 + at.byte] =
        static_cast<unsigned char>((i < 4 ? codes.x : codes.y) >> (i % 4 * 8));
  }
}
// The same of f16: word w is of product w, of which 4 are in 128 bytes.
template <class C>
__device__ void store_f16_blocks(unsigned char* group, int token, int run, const float (&v)[8]) {
  const int block = run / 4, row = row_of_block(token, block);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const PlanePlace at = plane_place<C::kBits>(run, i);
    unsigned char* const rows = group + at.word / 4 * kBlocks * C::kTokens * kSlabBytes;
    const int chunk = (at.word % 4 * 2 + at.byte / 2) ^ (row % 8);
    *reinterpret_cast<f16*>(rows + row * kSlabBytes + chunk * 16 + block * 4 + at.byte % 2 * 2) =
        from_float<f16>(v[i]);
  }
}

// Zeros for all of x. All consumers.
template <class C>
__device__ void clear_blocks(const Memory<C>& memory, const Share& share, int thread) {
  auto* const x = reinterpret_cast<uint4*>(memory.x(0));
  const int count = share.slabs * C::kGroups * C::kXBytes / static_cast<int>(sizeof(uint4));
  for (int i = thread; i < count; i += kConsumers) x[i] = {};
}

// Stored codes. x: of the first token and of column 0. All consumers.
template <class C>
__device__ void load_blocks(const Memory<C>& memory, const Share& share, const uint8_t* x,
                            int64_t stride, int tokens, int thread) {
  constexpr int kRuns = kScaleColumns / 8;
  const int runs = share.slabs * C::kGroups * kRuns;
  x += share.first_slab * C::kGroups * kScaleColumns;
  for (int token = 0; token < tokens; ++token, x += stride) {
    for (int i = thread; i < runs; i += kConsumers)
      store_blocks<C::kBits>(memory.x(i / kRuns), token, i % kRuns,
                             reinterpret_cast<const uint2*>(x)[i]);
  }
}

// E4M4 scales of a lane's rows. Four lanes hold those of four slabs, and the next four are on their
// way: they come from memory, not through the ring.
class PlaneScales {
 public:
  static constexpr int kSlabs = 4;

  // Those of slabs first .. first + 3 of the rank become the next ones.
  template <class P>
  __device__ void request(const P& params, const Share& share, const Tile& tile, int first) {
    const Matrix& matrix = params.matrix[tile.matrix];
    const int thread = static_cast<int>(threadIdx.x), slab = first + thread % 4;
    const int row = thread / kWarp * 16 + thread % kWarp / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      next_[half] = {};
      if (slab >= share.slabs) continue;
      const auto* scales = static_cast<const uint8_t*>(matrix.scale) +
                           (tile.row + min(row + 8 * half, tile.count - 1)) * matrix.scale_stride;
      next_[half] = reinterpret_cast<const uint2*>(scales)[share.first_slab + slab];
    }
  }
  __device__ void advance() {
    held_[0] = next_[0], held_[1] = next_[1];
  }

  // Over 16: of rows g and g + 8, for the lane's block of both groups of a slab.
  __device__ void of_slab(int slab, float2 (&scale)[2]) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int from = lane / 4 * 4 + slab % kSlabs;
    const uint32_t selectors = 0x4400 + lane % 4 * 0x1111;  // the byte of each row, twice
#pragma unroll
    for (int group = 0; group < 2; ++group) {
      const uint32_t upper = __shfl_sync(~0u, group == 0 ? held_[0].x : held_[0].y, from);
      const uint32_t lower = __shfl_sync(~0u, group == 0 ? held_[1].x : held_[1].y, from);
      const uint32_t both = (ptx::prmt(upper, lower, selectors) & 0x00ff00ff) << 6;
      scale[group] = __half22float2(reinterpret_cast<const __half2&>(both));
    }
  }

 private:
  uint2 held_[2], next_[2];
};

// The lane's blocks of a slab: rows g and g + 8 of both groups.
template <class C>
struct Planes {
  uint32_t words[C::kGroups][2][C::kBits];

  __device__ explicit Planes(const unsigned char* slab) {
    constexpr int kBlockWords = C::kBits, kRowWords = C::kBoxColumns;
    const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
    const auto* const first = reinterpret_cast<const uint32_t*>(slab) +
                              (thread / kWarp * 16 + lane / 4) * kRowWords + lane % 4 * kBlockWords;
#pragma unroll
    for (int i = 0; i < C::kGroups * 2 * C::kBits; ++i) {
      const int word = i % C::kBits, half = i / C::kBits % 2, group = i / C::kBits / 2;
      words[group][half][word] = first[8 * half * kRowWords + group * kBlocks * kBlockWords + word];
    }
  }
};

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

// Sums of the four blocks, as wgmma would leave them for tokens as columns: the lane b of four has
// tokens 2b and 2b + 1, or every lane tokens 0 and 1. (0 + 2) + (1 + 3), however many tokens.
template <int kTokens>
__device__ void add_blocks(float (&of_pair)[kTokens / 2][4], float (&sums)[4]) {
  const int block = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kTokens == 2) {
      const float two = of_pair[0][i] + __shfl_xor_sync(~0u, of_pair[0][i], 2);
      sums[i] = two + __shfl_xor_sync(~0u, two, 1);
    } else {
      static_assert(kTokens == 8);
      float two[2];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float kept = block < 2 ? of_pair[n][i] : of_pair[n + 2][i];
        const float sent = block < 2 ? of_pair[n + 2][i] : of_pair[n][i];
        two[n] = kept + __shfl_xor_sync(~0u, sent, 2);
      }
      const float kept = block % 2 == 0 ? two[0] : two[1];
      const float sent = block % 2 == 0 ? two[1] : two[0];
      sums[i] = kept + __shfl_xor_sync(~0u, sent, 1);
    }
  }
}

}  // namespace dsv4::few_gemm
