// Activations for weights as bit planes (weights/kbit_planes.cuh), in shared memory: a token has a
// row of 128 bytes for each block of 32 columns, with zeros in place of the other blocks of its
// group.

#pragma once

#include <cuda_fp16.h>

#include "dsv4/ops/gemm/sm90/small_m/config.cuh"

namespace dsv4::gemm {

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
// Stores 8 columns as f16: word w is of product w; four products are in 128 bytes.
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

// Zeros for x of `groups` groups of columns, by kThreads threads.
template <class C, int kThreads>
__device__ void clear_blocks(unsigned char* x, int groups, int thread) {
  const int count = groups * C::kXBytes / static_cast<int>(sizeof(uint4));
  for (int i = thread; i < count; i += kThreads) reinterpret_cast<uint4*>(x)[i] = {};
}

// Stored codes. x: of the first group. from: of the first token and that group.
template <class C, int kThreads>
__device__ void load_blocks(unsigned char* x, int groups, const uint8_t* from, int64_t stride,
                            int tokens, int thread) {
  constexpr int kPerGroup = kScaleColumns / 8;
  for (int token = 0; token < tokens; ++token, from += stride) {
    for (int i = thread; i < groups * kPerGroup; i += kThreads)
      store_blocks<C::kBits>(x + i / kPerGroup * C::kXBytes, token, i % kPerGroup,
                             reinterpret_cast<const uint2*>(from)[i]);
  }
}

}  // namespace dsv4::gemm
