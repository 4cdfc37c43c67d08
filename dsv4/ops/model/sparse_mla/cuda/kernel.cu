// Implementation cuda: f32 arithmetic for any shape. One CTA per query and group of heads, two
// heads per warp. Two passes over the keys: the first finds the row max, the second computes P, its
// row sum and PV, so that P is rounded as the contract says: relative to the final max.
//
// KV entries are decoded to f32 in shared memory, a tile at a time. Lane l of a warp has dims l, l
// + 32, ... of its heads' q and out in registers, and takes keys in pairs: four dot products at a
// time hide the latency of the warp reductions.

#include "dsv4/device/launch.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/pack_kv_entry.h"
#include "dsv4/ops/model/sparse_mla/make_index_lists.h"

namespace dsv4::sparse_mla_kernel::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kPerWarp = 2, kHeads = kWarps * kPerWarp;
constexpr int kTile = 16;                    // keys decoded at a time
constexpr int kMaxWidth = 576;               // bounds the registers of a lane
constexpr int kColumns = kMaxWidth / kWarp;  // dims of a lane, at most

struct Shape {
  QueryStrides q, out, lse, max_logits;
  int heads, d, d_v;
  float scale;
  bool normalized;
};

struct Stats {
  float *lse, *max_logits;  // or null
};

struct Shared {
  int32_t entries[kThreads];
  int sums[kWarps];
};

// One KV entry to f32, by a warp. key: [d]
__device__ void decode_entry(const PoolPointer& pool, const EntryPlace& at, int d, float* key) {
  const int lane = threadIdx.x % kWarp;
  if (pool.dtype == DType::kF32) {
    const float* values = reinterpret_cast<const float*>(at.page) + int64_t{at.entry} * d;
    for (int c = lane; c < d; c += kWarp) key[c] = values[c];
    return;
  }
  if (pool.dtype == DType::kBF16) {
    const bf16* values = reinterpret_cast<const bf16*>(at.page) + int64_t{at.entry} * d;
    for (int c = lane; c < d; c += kWarp) key[c] = to_float(values[c]);
    return;
  }
  const KvLayout& layout = pool.layout;
  const uint8_t* codes = at.page + layout.entry_offset(at.entry);
  const uint8_t* scales = at.page + layout.scale_offset(pool.page_entries, at.entry);
  const auto* rope = reinterpret_cast<const bf16*>(at.page + layout.rope_offset(at.entry));
  const int group = layout.group();
  for (int g = 0; g < layout.num_scales(); ++g) {
    const float scale = kv_scale(layout, scales, g);
    for (int c = g * group + lane; c < (g + 1) * group; c += kWarp) {
      key[c] = e4m3_to_f32(codes[c]) * scale;
    }
  }
  for (int c = lane; c < layout.rope; c += kWarp) key[layout.nope + c] = to_float(rope[c]);
}

// This lane's dims of `values` [d]; 0 past the end.
template <class T>
__device__ void load_columns(const T* values, int d, float (&columns)[kColumns]) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int c = i * kWarp + lane;
    columns[i] = c < d ? to_float(values[c]) : 0.f;
  }
}

using Columns = float[kColumns];

// Every lane gets the sum.
__device__ float dot(const Columns& q, const Columns& key) {
  float sum = 0.f;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) sum = fmaf(q[i], key[i], sum);
  return warp_sum(sum);
}

// Calls visit(keys, n) for tiles of the query's valid keys in order; keys: [n, d] f32 in shared
// memory. Returns the number of valid keys.
template <class Visit>
__device__ int for_each_tile(const IndexLists& lists, const QueryLists& query, int d, float* keys,
                             Shared& shared, const Visit& visit) {
  const int length = query.length(), warp = threadIdx.x / kWarp;
  int all = 0;
  for (int begin = 0; begin < length; begin += kThreads) {
    const int32_t mine = entry_at(query, begin + static_cast<int>(threadIdx.x), length);
    const int count = append_entries<kThreads>(mine, shared.entries, 0, shared.sums);
    all += count;
    for (int tile = 0; tile < count; tile += kTile) {
      const int n = min(kTile, count - tile);
      __syncthreads();  // the entries are written, the previous tile has been used
      for (int j = warp; j < n; j += kWarps) {
        const int32_t entry = shared.entries[tile + j];
        const PoolPointer pool = pool_of(lists, entry);
        decode_entry(pool, find_entry(pool, entry), d, keys + j * d);
      }
      __syncthreads();
      visit(keys, n);
    }
  }
  return all;
}

// Two keys of a tile for the heads of a warp.
struct KeyPair {
  Columns keys[2];
  bool second;  // false: there is no second key, keys[1] repeats the first

  __device__ KeyPair(const float* tile, int j, int n, int d) : second(j + 1 < n) {
    load_columns(tile + j * d, d, keys[0]);
    load_columns(tile + (second ? j + 1 : j) * d, d, keys[1]);
  }
};

template <bool kRound>
__device__ float rounded(float probability) {
  return kRound ? to_float(from_float<bf16>(probability)) : probability;
}

// Stores lse and max_logits of a head; returns the factor for its output.
__device__ float finish_head(const Shape& shape, const IndexLists& lists, int head, bool any,
                             float largest, float sum, const float* sink, const Stats& to) {
  const int query = static_cast<int>(blockIdx.x);
  if (threadIdx.x % kWarp == 0) {
    if (to.lse != nullptr) {
      to.lse[shape.lse.at(query, lists.s_q, head)] = any ? largest + logf(sum) : INFINITY;
    }
    if (to.max_logits != nullptr) {
      to.max_logits[shape.max_logits.at(query, lists.s_q, head)] = any ? largest : -INFINITY;
    }
  }
  if (!any) return 0.f;
  if (!shape.normalized) return 1.f;
  return 1.f / (sink == nullptr ? sum : sum + expf(sink[head] - largest));
}

// CTA (i, g): query i, heads g * kHeads ... Dynamic shared memory: kTile keys of d floats.
template <bool kRound, class Q, class Out>
__global__ void __launch_bounds__(kThreads) attend_kernel(IndexLists lists, Shape shape, const Q* q,
                                                          const float* sink, Out* out, Stats to) {
  ptx::pdl_start();
  extern __shared__ float keys[];
  __shared__ Shared shared;
  const int d = shape.d, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int first = static_cast<int>(blockIdx.y) * kHeads + warp * kPerWarp;
  const int query = static_cast<int>(blockIdx.x);
  const QueryLists list = query_lists(lists, query);
  Columns queries[kPerWarp];
#pragma unroll
  for (int h = 0; h < kPerWarp; ++h) {
    const Q* from = q + shape.q.at(query, lists.s_q, first + h);
    load_columns(from, first + h < shape.heads ? d : 0, queries[h]);
  }

  float largest[kPerWarp] = {-INFINITY, -INFINITY};
  for_each_tile(lists, list, d, keys, shared, [&](const float* tile, int n) {
    for (int j = 0; j < n; j += 2) {
      const KeyPair pair(tile, j, n, d);
#pragma unroll
      for (int h = 0; h < kPerWarp; ++h) {
        const float a = dot(queries[h], pair.keys[0]), b = dot(queries[h], pair.keys[1]);
        largest[h] = fmaxf(largest[h], fmaxf(a, b));
      }
    }
  });
#pragma unroll
  for (int h = 0; h < kPerWarp; ++h) largest[h] *= shape.scale;

  float sum[kPerWarp] = {};
  Columns values[kPerWarp] = {};
  const int count = for_each_tile(lists, list, d, keys, shared, [&](const float* tile, int n) {
    for (int j = 0; j < n; j += 2) {
      const KeyPair pair(tile, j, n, d);
#pragma unroll
      for (int h = 0; h < kPerWarp; ++h) {
        float e[2];
        for (int k = 0; k < 2; ++k) {
          e[k] = expf(__fmul_rn(shape.scale, dot(queries[h], pair.keys[k])) - largest[h]);
        }
        if (!pair.second) e[1] = 0.f;
        sum[h] += e[0];
        sum[h] += e[1];
        const float a = rounded<kRound>(e[0]), b = rounded<kRound>(e[1]);
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          values[h][i] = fmaf(b, pair.keys[1][i], fmaf(a, pair.keys[0][i], values[h][i]));
        }
      }
    }
  });
#pragma unroll
  for (int h = 0; h < kPerWarp; ++h) {
    const int head = first + h;
    if (head >= shape.heads) return;
    const float factor = finish_head(shape, lists, head, count > 0, largest[h], sum[h], sink, to);
    Out* row = out + shape.out.at(query, lists.s_q, head);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int c = i * kWarp + lane;
      if (c < shape.d_v) row[c] = from_float<Out>(values[h][i] * factor);
    }
  }
}

}  // namespace

const char* reject(const Context&, const SparseMlaArgs& args) {
  return args.q.dim(-1) > kMaxWidth ? "rows of more than 576 values" : nullptr;
}

void run(const Context& context, const SparseMlaArgs& args) {
  const int64_t heads = args.q.dim(2), d = args.q.dim(3);
  const Shape shape{.q = query_strides(args.q),
                    .out = query_strides(args.out),
                    .lse = lse_strides(args.lse),
                    .max_logits = lse_strides(args.max_logits),
                    .heads = static_cast<int>(heads),
                    .d = static_cast<int>(d),
                    .d_v = static_cast<int>(args.out.dim(3)),
                    .scale = args.scale,
                    .normalized = args.normalized};
  const Stats stats{args.lse.empty() ? nullptr : args.lse.as<float>(),
                    args.max_logits.empty() ? nullptr : args.max_logits.as<float>()};
  with_float_type(args.q.dtype, [&](auto q) {
    with_float_type(args.out.dtype, [&](auto out) {
      using Q = decltype(q);
      using Out = decltype(out);
      const bool round = context.numerics == Numerics::kOfficial;
      launch(*context.device, "sparse_mla",
             round ? attend_kernel<true, Q, Out> : attend_kernel<false, Q, Out>,
             {.grid = args.q.dim(0) * args.q.dim(1),
              .block = kThreads,
              .grid_y = ceil_div(heads, kHeads),
              .shared = kTile * d * static_cast<int64_t>(sizeof(float)),
              .pdl = true},
             index_lists(args), shape, args.q.as<Q>(),
             args.sink.empty() ? nullptr : args.sink.as<float>(), args.out.as<Out>(), stats);
    });
  });
}

}  // namespace dsv4::sparse_mla_kernel::cuda
