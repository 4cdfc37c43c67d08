// The epilogue of a work tile: each consumer warpgroup stores its 256 dims of O; warpgroup 0 also
// lse and max_logits.

#pragma once

#include "dsv4/device/sm90/epilogue.cuh"
#include "dsv4/ops/model/sparse_mla/sm90_bf16/consumer.cuh"

namespace dsv4::sparse_mla_kernel::sm90_bf16 {

__device__ inline void store_lse(const Params& p, const WorkTile& work, int head, float row_max,
                                 float row_sum) {
  const bool any = row_max > -INFINITY;
  if (p.lse != nullptr) {
    p.lse[work.at(p.lse_at, head)] = any ? p.scale * row_max + logf(row_sum) : INFINITY;
  }
  if (p.max_logits != nullptr) p.max_logits[work.at(p.max_at, head)] = p.scale * row_max;
}

// The factor for O of a head; without a valid key row_max is -inf.
__device__ inline float output_scale(const Params& p, int head, float row_max, float row_sum) {
  if (row_max == -INFINITY) return 0.f;
  if (!p.normalized) return 1.f;
  return 1.f / (p.sink == nullptr ? row_sum : row_sum + expf(p.sink[head] - p.scale * row_max));
}

// Dims 8 n + 2 j and + 1 of row r.
template <int kPanels>
__device__ float2 output_pair(const Consumer<kPanels>& c, int n, int r, float scale) {
  const float* two = c.o[n / 16] + 4 * (n % 16) + 2 * r;
  return {two[0] * scale, two[1] * scale};
}

// f32: four lanes write a sector.
template <int kPanels>
__device__ void store_row(const Consumer<kPanels>& c, int r, float scale, float* to) {
  if (to == nullptr) return;
#pragma unroll
  for (int n = 0; n < kHalfDims / 8; ++n) {
    const float2 pair = output_pair(c, n, r, scale);
    sm90::store_pair(to + 8 * n + 2 * (c.lane % 4), pair.x, pair.y);
  }
}

// bf16: neighboring lanes exchange a pair, so that each has four dims, of 8 n or of 8 (n + 1), and
// four lanes write a sector.
template <int kPanels>
__device__ void store_row(const Consumer<kPanels>& c, int r, float scale, bf16* to) {
  const bool odd = c.lane % 2 != 0;
  const int dim = 8 * (c.lane % 2) + 4 * (c.lane % 4 / 2);
#pragma unroll
  for (int n = 0; n < kHalfDims / 8; n += 2) {
    const float2 a = output_pair(c, n, r, scale), b = output_pair(c, n + 1, r, scale);
    const uint32_t low = ptx::pack_bf16x2(a.x, a.y);
    const uint32_t high = ptx::pack_bf16x2(b.x, b.y);
    const uint32_t got = __shfl_xor_sync(~0u, odd ? low : high, 1);
    if (to == nullptr) continue;
    *reinterpret_cast<uint2*>(to + 8 * n + dim) = odd ? uint2{got, high} : uint2{low, got};
  }
}

template <class Out, int kPanels>
__device__ void finish_tile(const Consumer<kPanels>& c, const Params& p, const WorkTile& work) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float row_sum = c.softmax.row_sum[r] + c.softmax.peer_sum[r];
    row_sum += __shfl_xor_sync(~0u, row_sum, 1);
    row_sum += __shfl_xor_sync(~0u, row_sum, 2);
    const int head = work.first_head + 16 * c.warp + 8 * r + c.lane / 4;
    const bool exists = head < p.heads;
    if (exists && c.wg == 0 && c.lane % 4 == 0)
      store_lse(p, work, head, c.softmax.row_max[r], row_sum);
    const float scale = exists ? output_scale(p, head, c.softmax.row_max[r], row_sum) : 0.f;
    Out* to = static_cast<Out*>(p.out) + work.at(p.out_at, exists ? head : 0) + c.wg * kHalfDims;
    store_row(c, r, scale, exists ? to : nullptr);
  }
}

}  // namespace dsv4::sparse_mla_kernel::sm90_bf16
