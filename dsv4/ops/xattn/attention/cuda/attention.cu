// Portable block-sparse attention: f32 FMAs, correct for every shape, not tuned.
//
//   CTA     16 queries of a query block of one head; 8 warps, two queries each
//   keys    32 at a time, as f32 in shared memory; lane j of a warp has key j
//   output  lane l has the columns l, l + 32, ... of its warp's queries in registers

#include "dsv4/ops/xattn/attention/block_sparse_attention.h"

#include "dsv4/device/launch.cuh"
#include "dsv4/device/math.cuh"

namespace dsv4::block_sparse_attention_kernel::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kPerWarp = 2, kQueries = kWarps * kPerWarp;
constexpr int kKeys = kWarp;
constexpr int kMaxWidth = 256, kColumns = kMaxWidth / kWarp;

struct Params {
  const int *cu_q, *cu_kv;
  bool causal;
  int heads, group, q_blocks, block, d, d_v;
  int64_t q_row, q_head, out_row, out_head, lse_head;
  KvAddress k_at, v_at;
  const int *counts, *indices;  // null: dense
  int slots;
  float scale;
  float* lse;  // or null
};

// What a warp keeps of one query.
struct QueryState {
  float largest = -INFINITY, sum = 0.f;
  float out[kColumns] = {};
};

// to: [rows, width + 1] f32, zeros from row `valid` on. One element more a row keeps lanes that
// read different rows in different banks.
template <class T, class At>
__device__ void load_rows(const T* from, const At& at, int rows, int valid, int width, float* to) {
  for (int i = threadIdx.x; i < rows * width; i += kThreads) {
    const int row = i / width, column = i % width;
    to[row * (width + 1) + column] = row < valid ? to_float(from[at(row) + column]) : 0.f;
  }
}

template <bool kRound, class T>
__device__ float rounded(float p) {
  return kRound ? to_float(from_float<T>(p)) : p;
}

// One query over the keys of a tile; q, k, v in shared memory. `seen` keys count.
template <bool kRound, class T>
__device__ void add_tile(const Params& params, const float* q, const float* k, const float* v,
                         int seen, QueryState& state) {
  const int lane = threadIdx.x % kWarp;
  float dot = 0.f;
  for (int c = 0; c < params.d; ++c) dot = fmaf(q[c], k[lane * (params.d + 1) + c], dot);
  const float z = lane < seen ? dot * params.scale : -INFINITY;
  const float now = fmaxf(state.largest, warp_max(z));
  if (now == -INFINITY) return;
  const float rescale = expf(state.largest - now), e = expf(z - now);
  state.largest = now;
  state.sum = state.sum * rescale + warp_sum(e);
  const float p = rounded<kRound, T>(e);
#pragma unroll
  for (int i = 0; i < kColumns; ++i) state.out[i] *= rescale;
  for (int j = 0; j < min(seen, kKeys); ++j) {
    const float weight = __shfl_sync(~0u, p, j);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int column = i * kWarp + lane;
      if (column < params.d_v) {
        state.out[i] = fmaf(weight, v[j * (params.d_v + 1) + column], state.out[i]);
      }
    }
  }
}

// CTA (x, y): 16 queries of a query block, head; z: sequence.
template <bool kRound, class T>
__global__ void __launch_bounds__(kThreads)
    attend_kernel(Params params, const T* q, const T* k, const T* v, T* out) {
  extern __shared__ float memory[];
  float *q_tile = memory, *k_tile = q_tile + kQueries * (params.d + 1);
  float* v_tile = k_tile + kKeys * (params.d + 1);
  const int per_block = params.block / kQueries;
  const int row = static_cast<int>(blockIdx.x) / per_block, head = static_cast<int>(blockIdx.y);
  const int index = static_cast<int>(blockIdx.z), kv_head = head / params.group;
  const PrefillSequence s = prefill_sequence(params.cu_q, params.cu_kv, index, params.causal);
  if (row >= s.num_q_blocks(params.block)) return;
  const int q_block = s.first_block(params.block) + row;
  const int first = q_block * params.block + static_cast<int>(blockIdx.x) % per_block * kQueries;
  const int begin = max(first, s.first_position);
  const int end = min(first + kQueries, s.first_position + s.queries);
  if (begin >= end) return;

  const int shift = s.first_q - s.first_position;  // row of q = position + shift
  load_rows(
      q, [&](int i) { return (begin + i + shift) * params.q_row + head * params.q_head; }, kQueries,
      end - begin, params.d, q_tile);
  const int visible = s.visible_blocks(params.block, q_block);
  const int64_t at = (static_cast<int64_t>(index) * params.heads + head) * params.q_blocks + row;
  const int count = params.counts == nullptr ? visible : params.counts[at];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  QueryState states[kPerWarp];
  for (int n = 0; n < count; ++n) {
    const int k_block = params.counts == nullptr ? n : params.indices[at * params.slots + n];
    if (k_block >= visible) break;
    const int stop = min((k_block + 1) * params.block, s.keys);
    for (int key = k_block * params.block; key < stop; key += kKeys) {
      const int valid = min(kKeys, stop - key);
      __syncthreads();  // the tile before has been used
      load_rows(
          k, [&](int j) { return params.k_at(index, s.first_kv, key + j, kv_head); }, kKeys, valid,
          params.d, k_tile);
      load_rows(
          v, [&](int j) { return params.v_at(index, s.first_kv, key + j, kv_head); }, kKeys, valid,
          params.d_v, v_tile);
      __syncthreads();
      for (int i = 0; i < kPerWarp; ++i) {
        const int query = warp * kPerWarp + i, position = begin + query;
        if (position >= end) continue;
        const int seen = params.causal ? min(valid, position + 1 - key) : valid;
        if (seen <= 0) continue;
        add_tile<kRound, T>(params, q_tile + query * (params.d + 1), k_tile, v_tile, seen,
                            states[i]);
      }
    }
  }
  for (int i = 0; i < kPerWarp; ++i) {
    const int position = begin + warp * kPerWarp + i;
    if (position >= end) continue;
    const QueryState& state = states[i];
    const bool any = state.largest > -INFINITY;
    const int64_t to = position + shift;
    if (params.lse != nullptr && lane == 0) {
      params.lse[head * params.lse_head + to] = any ? state.largest + logf(state.sum) : -INFINITY;
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int column = c * kWarp + lane;
      if (column < params.d_v) {
        out[to * params.out_row + head * params.out_head + column] =
            from_float<T>(any ? state.out[c] / state.sum : 0.f);
      }
    }
  }
}

int64_t q_blocks_of(const BlockSparseAttentionArgs& args) {
  if (!args.lists.empty()) return args.lists.counts.dim(2);
  return args.max_q_blocks > 0 ? args.max_q_blocks : args.q.dim(0) / args.block + 2;
}

}  // namespace

const char* reject(const Context&, const BlockSparseAttentionArgs& args) {
  if (args.q.dim(2) > kMaxWidth || args.v.dim(-1) > kMaxWidth) return "wants d at most 256";
  if (args.batch.size() > 65535 || args.q.dim(1) > 65535)
    return "more than 65535 sequences or heads";
  return nullptr;
}

void run(const Context& context, const BlockSparseAttentionArgs& args) {
  if (args.q.numel() == 0) return;
  const bool dense = args.lists.empty(), exact = context.numerics == Numerics::kExact;
  const int64_t d = args.q.dim(2), d_v = args.v.dim(-1);
  const Params params{
      .cu_q = args.batch.cu_q.as<int>(),
      .cu_kv = args.batch.cu_kv.as<int>(),
      .causal = args.batch.causal,
      .heads = static_cast<int>(args.q.dim(1)),
      .group = static_cast<int>(args.q.dim(1) / args.k.dim(-2)),
      .q_blocks = static_cast<int>(q_blocks_of(args)),
      .block = static_cast<int>(args.block),
      .d = static_cast<int>(d),
      .d_v = static_cast<int>(d_v),
      .q_row = args.q.stride[0],
      .q_head = args.q.stride[1],
      .out_row = args.out.stride[0],
      .out_head = args.out.stride[1],
      .lse_head = args.lse.empty() ? 0 : args.lse.stride[0],
      .k_at = kv_address(args.k, args.page_table),
      .v_at = kv_address(args.v, args.page_table),
      .counts = dense ? nullptr : args.lists.counts.as<int>(),
      .indices = dense ? nullptr : args.lists.indices.as<int>(),
      .slots = dense ? 0 : static_cast<int>(args.lists.indices.dim(3)),
      .scale = args.scale,
      .lse = args.lse.empty() ? nullptr : args.lse.as<float>(),
  };
  with_stored_type(args.q.dtype, [&](auto element) {
    using T = decltype(element);
    const int64_t floats = (kQueries + kKeys) * (d + 1) + kKeys * (d_v + 1);
    launch(*context.device, "block_sparse_attention",
           exact ? attend_kernel<false, T> : attend_kernel<true, T>,
           {.grid = params.q_blocks * (args.block / kQueries),
            .block = kThreads,
            .grid_y = args.q.dim(1),
            .grid_z = args.batch.size(),
            .shared = floats * static_cast<int64_t>(sizeof(float))},
           params, args.q.as<T>(), args.k.as<T>(), args.v.as<T>(), args.out.as<T>());
  });
}

}  // namespace dsv4::block_sparse_attention_kernel::cuda
