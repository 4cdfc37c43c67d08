// Sparse MLA over packed V4 entries (448 + 64 values) with mma.sync, any GPU from sm_80 on,
// kOfficial. Operands are exact in bf16: an entry is e4m3 times a power of two, or bf16; q is bf16;
// P is bf16 by the contract.
//
// One CTA per query, 64 or 16 heads, and split of its list. It walks over tiles of 64 valid keys:
// the packed bytes of the next tile are copied asynchronously while this one is decoded to bf16 in
// shared memory and multiplied twice:
//
//   S [heads, 64] = Q K^T     per warp: 16 heads x 8 or 32 keys
//   O [heads, 512] += P V     per warp: all heads x 64 dims, in registers
//
// The softmax is online: P is rounded relative to the largest logit so far,
// not of the whole list. Either rounding is off by at most 2^-9 of P, and P of
// the largest logit so far is exactly 1, so an output changes by less than
// 2^-8 of the other keys' share: the tolerance of the contract's rounding.
//
// Batch invariance: the arithmetic of a query depends only on its lists. Splits have a fixed
// length, CTAs of 16 heads (few queries) and of 64 (many) add in the same order, and a second
// kernel combines the splits in order.

#pragma once

#include "dsv4/device/ptx/cp_async.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/sm90/limits.h"
#include "dsv4/ops/model/sparse_mla/cuda_mma/products.cuh"

namespace dsv4::sparse_mla_kernel::cuda_mma {

struct Params {
  IndexLists lists;
  const bf16* q;
  QueryStrides q_at, out_at, lse_at, max_at;
  int first_query;  // of this launch
  int heads, num_splits;
  float scale;
  bool normalized;
  const float* sink;        // or null
  float *lse, *max_logits;  // or null
  // With several splits, of the queries of a launch:
  float* partial;       // [queries, heads, num_splits, 512]: unnormalized O
  float2* split_stats;  // [queries, heads, num_splits]: row max of S (-inf: no key), row sum of P

  // First element of a head of the launch's query `local`.
  __device__ int64_t at(const QueryStrides& strides, int local, int head) const {
    return strides.at(first_query + local, lists.s_q, head);
  }
};

// exp(scale (s - row_max)).
__device__ inline float exp_scaled(float s, float row_max, float scale) {
  return exp2f((s - row_max) * (scale * sm90::kLog2E));
}

// --- softmax ---

// The largest S of a tile and a head, over the key groups of the warps.
template <int kMTiles>
__device__ float row_max_of_tile(const Shared<16 * kMTiles>& shared, int head) {
  float row_max = shared.tile_max[0][head];
  for (int group = 1; group < WarpTiling<kMTiles>::kKeyGroups; ++group) {
    row_max = fmaxf(row_max, shared.tile_max[group][head]);
  }
  return row_max;
}

// Softmax state of a warp's 16 heads, in its key group: rows g and g + 8 of a lane.
template <int kMTiles>
struct Softmax {
  using W = WarpTiling<kMTiles>;
  float row_max[2] = {-INFINITY, -INFINITY};
  float sums[W::kNTiles][2] = {};  // of P, of this lane's two keys of each 8

  // S of keys past the end becomes -inf; the row max of this key group goes to shared memory.
  __device__ void mask_and_publish_max(float (&s)[W::kNTiles][4], int keys_left,
                                       Shared<W::kHeads>& shared) const {
    const int g = threadIdx.x % kWarp / 4, j = threadIdx.x % 4;
    float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int n = 0; n < W::kNTiles; ++n) {
      for (int i = 0; i < 4; ++i) {
        const int key = 8 * (W::key_group() * W::kNTiles + n) + 2 * j + i % 2;
        if (key >= keys_left) s[n][i] = -INFINITY;
        top[i / 2] = fmaxf(top[i / 2], s[n][i]);
      }
    }
    for (int r = 0; r < 2; ++r) {
      top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
      top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
      if (j == 0) shared.tile_max[W::key_group()][16 * W::m_tile() + 8 * r + g] = top[r];
    }
  }

  // S -> P, rounded, in shared memory; the row sums add it unrounded.
  __device__ void exponentiate(const float (&s)[W::kNTiles][4], float scale,
                               Shared<W::kHeads>& shared) {
    const int g = threadIdx.x % kWarp / 4, j = threadIdx.x % 4;
    for (int r = 0; r < 2; ++r) {
      const int head = 16 * W::m_tile() + 8 * r + g;
      const float now = fmaxf(row_max[r], row_max_of_tile<kMTiles>(shared, head));
      const float factor = exp_scaled(row_max[r], now, scale);
      row_max[r] = now;
#pragma unroll
      for (int n = 0; n < W::kNTiles; ++n) {
        const float e0 = exp_scaled(s[n][2 * r], now, scale);
        const float e1 = exp_scaled(s[n][2 * r + 1], now, scale);
        sums[n][r] = fmaf(sums[n][r], factor, __fadd_rn(e0, e1));
        const int column = 8 * (W::key_group() * W::kNTiles + n) + 2 * j;
        *reinterpret_cast<__nv_bfloat162*>(&shared.p[head][column]) = __floats2bfloat162_rn(e0, e1);
      }
    }
  }

  __device__ void publish_sums(Shared<W::kHeads>& shared) const {
    const int g = threadIdx.x % kWarp / 4, j = threadIdx.x % 4;
    for (int n = 0; n < W::kNTiles; ++n) {
      for (int r = 0; r < 2; ++r) {
        float sum = sums[n][r];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (j != 0) continue;
        shared.sums[W::key_group() * W::kNTiles + n][16 * W::m_tile() + 8 * r + g] = sum;
      }
    }
  }
};

// O of all heads of the CTA, this warp's dims, relative to `row_max`.
template <int kMTiles>
struct Output {
  float values[kMTiles][kOutTiles][4] = {};
  float row_max[kMTiles][2];

  __device__ Output() {
    for (int m = 0; m < kMTiles; ++m) row_max[m][0] = row_max[m][1] = -INFINITY;
  }

  __device__ void rescale(float scale, const Shared<16 * kMTiles>& shared) {
    const int g = threadIdx.x % kWarp / 4;
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float now =
            fmaxf(row_max[m][r], row_max_of_tile<kMTiles>(shared, 16 * m + 8 * r + g));
        const float factor = exp_scaled(row_max[m][r], now, scale);
        row_max[m][r] = now;
        for (int n = 0; n < kOutTiles; ++n) {
          values[m][n][2 * r] *= factor;
          values[m][n][2 * r + 1] *= factor;
        }
      }
    }
  }
};

// --- epilogue ---

// Stores lse and max_logits of a head; returns the factor for O. Without a
// valid key row_max is -inf.
__device__ inline float finish_head(const Params& in, int query, int head, float row_max, float sum,
                                    bool writes_stats) {
  const bool any = row_max > -INFINITY;
  const float top = in.scale * row_max;
  if (writes_stats && in.lse != nullptr) {
    in.lse[in.at(in.lse_at, query, head)] = any ? top + logf(sum) : INFINITY;
  }
  if (writes_stats && in.max_logits != nullptr) {
    in.max_logits[in.at(in.max_at, query, head)] = top;
  }
  if (!any) return 0.f;
  if (!in.normalized) return 1.f;
  return 1.f / (in.sink == nullptr ? sum : sum + expf(in.sink[head] - top));
}

__device__ inline void store_pair(bf16* to, float a, float b) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}
__device__ inline void store_pair(float* to, float a, float b) {
  to[0] = a;
  to[1] = b;
}

// The output, or with several splits the partial of this one.
template <int kMTiles, class Out>
__device__ void store(const Params& in, const Output<kMTiles>& output, int first_head, Out* out,
                      const Shared<16 * kMTiles>& shared) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, j = lane % 4, warp = threadIdx.x / kWarp;
  const int query = static_cast<int>(blockIdx.x);
  const bool writes_stats = warp == 0 && j == 0;
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int local = 16 * m + 8 * r + g, head = first_head + local;
      if (head >= in.heads) continue;
      float sum = 0.f;
      for (int w = 0; w < kWarps; ++w) sum += shared.sums[w][local];
      const float row_max = output.row_max[m][r];
      const int column = warp * kColumns + 2 * j;
      if (in.num_splits > 1) {
        const int64_t at = (int64_t{query} * in.heads + head) * in.num_splits + blockIdx.z;
        if (writes_stats) in.split_stats[at] = {row_max, sum};
        if (row_max == -INFINITY) continue;
        float* to = in.partial + at * kWidth + column;
        for (int n = 0; n < kOutTiles; ++n) {
          const float* pair = output.values[m][n] + 2 * r;
          *reinterpret_cast<float2*>(to + 8 * n) = {pair[0], pair[1]};
        }
        continue;
      }
      const float factor = finish_head(in, query, head, row_max, sum, writes_stats);
      Out* to = out + in.at(in.out_at, query, head) + column;
      for (int n = 0; n < kOutTiles; ++n) {
        const float* pair = output.values[m][n] + 2 * r;
        store_pair(to + 8 * n, pair[0] * factor, pair[1] * factor);
      }
    }
  }
}

template <int kHeads>
__device__ void load_queries(const Params& in, int first_head, Shared<kHeads>& shared) {
  constexpr int kRowChunks = kWidth / 8;
  for (int i = threadIdx.x; i < kHeads * kRowChunks; i += kThreads) {
    const int head = i / kRowChunks, column = i % kRowChunks * 8;
    const int64_t from = in.at(in.q_at, static_cast<int>(blockIdx.x), first_head + head);
    auto* to = reinterpret_cast<uint4*>(shared.q[head] + column);
    if (first_head + head < in.heads) {
      ptx::cp_async<16>(to, in.q + from + column);
    } else {
      *to = {0, 0, 0, 0};
    }
  }
}

// The valid entries of a split; returns their number. All indices are requested before one is used.
template <int kHeads>
__device__ int load_entries(const Params& in, int begin, Shared<kHeads>& shared) {
  const QueryLists lists = query_lists(in.lists, in.first_query + static_cast<int>(blockIdx.x));
  const int end = min(begin + kSplitKeys, lists.length());
  int32_t mine[kSplitKeys / kThreads];
#pragma unroll
  for (int i = 0; i < kSplitKeys / kThreads; ++i) {
    const int position = begin + i * kThreads + static_cast<int>(threadIdx.x);
    mine[i] = entry_at(lists, position, end);
  }
  int count = 0;
#pragma unroll
  for (int i = 0; i < kSplitKeys / kThreads; ++i) {
    if (begin + i * kThreads >= end) break;
    count = append_entries<kThreads>(mine[i], shared.entries, count, shared.counts);
  }
  return count;
}

// --- kernels ---

// CTA (i, y, s): query i, heads y * 16 kMTiles ..., list positions s * kSplitKeys ...
template <int kMTiles, class Out>
__global__ void __launch_bounds__(kThreads, 1) sparse_mla_cuda_mma_kernel(Params in, Out* out) {
  ptx::pdl_start();
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<16 * kMTiles>*>(memory);
  const int first_head = static_cast<int>(blockIdx.y) * 16 * kMTiles;
  load_queries(in, first_head, shared);
  const int count = load_entries(in, static_cast<int>(blockIdx.z) * kSplitKeys, shared);
  __syncthreads();
  shared.tile.fetch(in.lists, shared.entries, 0, count);
  ptx::cp_async_wait_all();
  __syncthreads();
  const Queries<kMTiles> queries(shared);

  Output<kMTiles> output;
  Softmax<kMTiles> softmax;
  for (int first = 0; first < count; first += kTile) {
    ptx::cp_async_wait_all();
    __syncthreads();  // the previous tile has been used; the scales of other lanes have arrived
    shared.tile.decode();
    __syncthreads();
    shared.tile.fetch(in.lists, shared.entries, first + kTile, count);
    float s[WarpTiling<kMTiles>::kNTiles][4] = {};
    multiply_qk<kMTiles>(shared, queries, s);
    softmax.mask_and_publish_max(s, count - first, shared);
    __syncthreads();
    softmax.exponentiate(s, in.scale, shared);
    output.rescale(in.scale, shared);
    __syncthreads();
    multiply_pv<kMTiles>(shared, output.values);
  }
  softmax.publish_sums(shared);
  __syncthreads();
  store(in, output, first_head, out, shared);
}

constexpr int kCombineThreads = kWidth / 4;

// CTA (i, h): query i, head h. Splits in order.
template <class Out>
__global__ void __launch_bounds__(kCombineThreads) combine_kernel(Params in, Out* out) {
  ptx::pdl_start();
  const int query = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y), column = 4 * static_cast<int>(threadIdx.x);
  const int64_t at = (int64_t{query} * in.heads + head) * in.num_splits;
  float row_max = -INFINITY;
  for (int s = 0; s < in.num_splits; ++s) row_max = fmaxf(row_max, in.split_stats[at + s].x);
  float sum = 0.f;
  float4 values{0.f, 0.f, 0.f, 0.f};
  for (int s = 0; s < in.num_splits; ++s) {
    const float2 stats = in.split_stats[at + s];
    if (stats.x == -INFINITY) continue;
    const float share = exp_scaled(stats.x, row_max, in.scale);
    const float4 partial =
        *reinterpret_cast<const float4*>(in.partial + (at + s) * kWidth + column);
    sum = fmaf(share, stats.y, sum);
    values.x = fmaf(share, partial.x, values.x);
    values.y = fmaf(share, partial.y, values.y);
    values.z = fmaf(share, partial.z, values.z);
    values.w = fmaf(share, partial.w, values.w);
  }
  const float factor = finish_head(in, query, head, row_max, sum, threadIdx.x == 0);
  Out* to = out + in.at(in.out_at, query, head) + column;
  store_pair(to, values.x * factor, values.y * factor);
  store_pair(to + 2, values.z * factor, values.w * factor);
}

}  // namespace dsv4::sparse_mla_kernel::cuda_mma
