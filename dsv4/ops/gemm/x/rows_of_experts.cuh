// The rows of an entry as e4m3 codes with a scale for each 128 columns, in shared memory: each
// warpgroup prepares the chunks that it multiplies, so only its own threads wait for each other.
//
//   one term    Q8: x is rounded to 4 significant bits
//   two terms   x = scale * (high + low / 16): what Q8 rounds off, at most half a unit in the last
//               place of `high`, is an e4m3 number again. A bf16 number of 8 significant bits is
//               exact where it is at least 2^-13 of the largest of its group, and else to 2^-20 of
//               that. The terms of a pair are neighboring columns of the products.

#pragma once

#include <cuda_fp8.h>

#include "dsv4/device/ptx/fence.cuh"
#include "dsv4/device/ptx/named_barrier.cuh"
#include "dsv4/device/ptx/packed.cuh"
#include "dsv4/formats/quant_group.h"
#include "dsv4/ops/gemm/sm90/experts_e4m3/config.cuh"
#include "dsv4/ops/gemm/x/pair_columns.cuh"

namespace dsv4::gemm::experts_e4m3 {

inline constexpr float kLowTerm = 16;  // by which the second term is larger than it stands for

// The scale of a group of 128 by its largest magnitude. Q8 has none below 1e-4 / 448; two terms
// keep smaller numbers, and make a group with an infinity NaN, as codes have none.
template <int kTerms>
__device__ inline uint8_t group_scale(float largest) {
  constexpr uint8_t kNan = 255;
  if constexpr (kTerms == 1) return q8_scale(largest);
  if (largest == INFINITY) return kNan;
  return pow2ceil_ue8m0(fmaxf(largest, 0x1p-100f) * (1.f / 448.f));
}

// Two columns, bf16, to e4m3 codes: of the first term, or of the second one.
__device__ inline uint32_t q8_codes(uint32_t pair, float inverse, bool low) {
  const float2 v = __bfloat1622float2(ptx::as_bf162(pair));
  const float2 scaled = make_float2(v.x * inverse, v.y * inverse);
  const auto high = __nv_cvt_float2_to_fp8x2(scaled, __NV_SATFINITE, __NV_E4M3);
  if (!low) return high;
  const float2 had = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(high, __NV_E4M3)));
  return __nv_cvt_float2_to_fp8x2(
      make_float2((scaled.x - had.x) * kLowTerm, (scaled.y - had.y) * kLowTerm), __NV_SATFINITE,
      __NV_E4M3);
}

// 16 columns of a pair, by one lane.
struct Columns16 {
  uint4 first, second;  // 8 columns each, bf16

  __device__ float largest() const {
    float most = 0;  // fmaxf drops NaN
#pragma unroll
    for (const uint32_t pair :
         {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w}) {
      const float2 v = __bfloat1622float2(ptx::as_bf162(pair));
      most = fmaxf(most, fmaxf(fabsf(v.x), fabsf(v.y)));
    }
    return most;
  }
  // Bytes 4t .. 4t + 3: columns 2t, 2t + 1, 2t + 8, 2t + 9.
  __device__ uint4 codes(float inverse, bool low = false) const {
    const auto four = [&](uint32_t a, uint32_t b) {
      return q8_codes(a, inverse, low) | q8_codes(b, inverse, low) << 16;
    };
    return {four(first.x, second.x), four(first.y, second.y), four(first.z, second.z),
            four(first.w, second.w)};
  }
};

// Called by all threads of a math warpgroup when they have finished with the activations before.
// Rows of a tile are 0 where they belong to another block (columns.cuh) or to no pair, and columns
// that do not exist are 0.
template <bool kGateUp, class S>
__device__ void load_activations(const Params& p, const Entry& entry, int group, S& shared) {
  constexpr int kPieces = kUnitColumns / 16, kChunks = S::kTiles / kHalves / kGroups;
  const int thread = static_cast<int>(threadIdx.x) % (kGroupWarps * kWarp);
  const int column = thread / kPieces, piece = thread % kPieces;  // column of the products
  const int pair = column / S::kTerms;
  const bool low = S::kTerms > 1 && column % S::kTerms != 0;
  const int half = piece / 8, column16 = piece % 8;  // of the chunk's two groups of 128
  const int to =
      row_of(width_of(entry.pairs * S::kTerms), column, column16 * 16 / block_columns(S::kScale));
  const bf16* row = p.x;
  if (pair < entry.pairs)
    row += int64_t{kGateUp ? entry.token[pair] : entry.first_pair + pair} * p.x_stride;
  Columns16 x[kChunks];
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int x_column = (i * kGroups + group) * kUnitColumns + piece * 16;
    const bool exists = pair < entry.pairs && x_column < p.columns;
    const auto* from = reinterpret_cast<const uint4*>(row + x_column);
    x[i].first = exists ? from[0] : uint4{};
    x[i].second = exists ? from[1] : uint4{};
  }
  ptx::barrier_sync(group_barrier(group), kGroupWarps * kWarp);
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int chunk = i * kGroups + group;
    if (chunk >= p.chunks) break;
    float largest = x[i].largest();
#pragma unroll
    for (int step = 1; step < 8; step *= 2)
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    const uint8_t scale = group_scale<S::kTerms>(largest);
    const int tile = 2 * chunk + half;
    *reinterpret_cast<uint4*>(shared.x[tile].codes[to] + 16 * (column16 ^ to)) =
        x[i].codes(inverse_scale(scale), low);
    if (column16 == 0)
      shared.x_scale[tile][column] = ue8m0_to_f32(scale) * (low ? 1 / kLowTerm : 1);
  }
  ptx::fence_proxy_async();
  ptx::barrier_sync(group_barrier(group), kGroupWarps * kWarp);
}

}  // namespace dsv4::gemm::experts_e4m3
