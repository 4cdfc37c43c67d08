// f32 arithmetic for any shape. A block is one query and a group of heads, a warp two of them. The
// list is walked twice: first for the largest logit, then for weights, their sum and the output, so
// that weights are rounded as the contract says: relative to the final maximum.
//
// Rows are decoded to f32 in shared memory, a tile at a time. Lane l of a warp has columns l, l +
// 32, ... of its heads' queries and outputs in registers, and takes keys in pairs: four dots at a
// time hide the latency of the warp sums.

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/sparse_mla/row_lists.cuh"
#include "dsv4/ops/sparse_mla/sparse_mla_cuda.h"

namespace dsv4 {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kPerWarp = 2, kHeads = kWarps * kPerWarp;
constexpr int kTile = 16;                    // keys decoded at a time
constexpr int kMaxWidth = 576;               // bounds the registers of a lane
constexpr int kColumns = kMaxWidth / kWarp;  // that a lane may own

struct Shape {
  QueryStrides q, out, lse, max_logits;
  int heads, d, d_v;
  float scale;
  bool normalized;
};

struct Sums {
  float *lse, *max_logits;  // or null
};

struct Shared {
  int32_t rows[kThreads];
  int sums[kWarps];
};

// One row to f32, by a warp. key: [d]
__device__ void decode_row(const PoolPointer& pool, const Place& at, int d, float* key) {
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

// This lane's columns of `values` [d]; 0 beyond.
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

// Calls visit(keys, n) for tiles of the query's valid rows in order; keys: [n, d] f32 in shared
// memory. Returns their number.
template <class Visit>
__device__ int for_each_tile(const RowLists& lists, const QueryRows& rows, int d, float* keys,
                             Shared& shared, const Visit& visit) {
  const int length = rows.length(), warp = threadIdx.x / kWarp;
  int all = 0;
  for (int begin = 0; begin < length; begin += kThreads) {
    const int32_t mine = listed_row(rows, begin + static_cast<int>(threadIdx.x), length);
    const int count = append_rows<kThreads>(mine, shared.rows, 0, shared.sums);
    all += count;
    for (int tile = 0; tile < count; tile += kTile) {
      const int n = min(kTile, count - tile);
      __syncthreads();  // rows are there, the last tile has been used
      for (int j = warp; j < n; j += kWarps) {
        const int32_t row = shared.rows[tile + j];
        const PoolPointer pool = pool_of(lists, row);
        decode_row(pool, find_row(pool, row), d, keys + j * d);
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
  bool second;  // whether there is one; otherwise it is the first again

  __device__ KeyPair(const float* tile, int j, int n, int d) : second(j + 1 < n) {
    load_columns(tile + j * d, d, keys[0]);
    load_columns(tile + (second ? j + 1 : j) * d, d, keys[1]);
  }
};

template <bool kRound>
__device__ float rounded(float weight) {
  return kRound ? to_float(from_float<bf16>(weight)) : weight;
}

// What a head leaves but its output: lse and max_logits, and the factor of the output.
__device__ float finish_head(const Shape& shape, const RowLists& lists, int head, bool any,
                             float largest, float sum, const float* sink, const Sums& sums) {
  const int query = static_cast<int>(blockIdx.x);
  if (threadIdx.x % kWarp == 0) {
    if (sums.lse != nullptr) {
      sums.lse[shape.lse.at(query, lists.s_q, head)] = any ? largest + logf(sum) : INFINITY;
    }
    if (sums.max_logits != nullptr) {
      sums.max_logits[shape.max_logits.at(query, lists.s_q, head)] = any ? largest : -INFINITY;
    }
  }
  if (!any) return 0.f;
  if (!shape.normalized) return 1.f;
  return 1.f / (sink == nullptr ? sum : sum + expf(sink[head] - largest));
}

// Block (i, g): query i, heads g * kHeads ... Dynamic shared memory: kTile rows of d floats.
template <bool kRound, class Q, class Out>
__global__ void __launch_bounds__(kThreads)
    sparse_mla_kernel(RowLists lists, Shape shape, const Q* q, const float* sink, Out* out,
                      Sums to) {
  extern __shared__ float keys[];
  __shared__ Shared shared;
  const int d = shape.d, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int first = static_cast<int>(blockIdx.y) * kHeads + warp * kPerWarp;
  const int query = static_cast<int>(blockIdx.x);
  const QueryRows rows = query_rows(lists, query);
  Columns queries[kPerWarp];
#pragma unroll
  for (int h = 0; h < kPerWarp; ++h) {
    const Q* from = q + shape.q.at(query, lists.s_q, first + h);
    load_columns(from, first + h < shape.heads ? d : 0, queries[h]);
  }

  float largest[kPerWarp] = {-INFINITY, -INFINITY};
  for_each_tile(lists, rows, d, keys, shared, [&](const float* tile, int n) {
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
  const int count = for_each_tile(lists, rows, d, keys, shared, [&](const float* tile, int n) {
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

const char* sparse_mla_cuda_reject(const Context&, const SparseMlaArgs& args) {
  return args.q.dim(-1) > kMaxWidth ? "rows of more than 576 values" : nullptr;
}

void sparse_mla_cuda(const Context& context, const SparseMlaArgs& given) {
  const SparseMlaArgs args = by_request(given);
  const int64_t heads = args.q.dim(2), d = args.q.dim(3);
  const Shape shape{.q = row_strides(args.q),
                    .out = row_strides(args.out),
                    .lse = sum_strides(args.lse),
                    .max_logits = sum_strides(args.max_logits),
                    .heads = static_cast<int>(heads),
                    .d = static_cast<int>(d),
                    .d_v = static_cast<int>(args.out.dim(3)),
                    .scale = args.scale,
                    .normalized = args.normalized};
  const Sums sums{args.lse.empty() ? nullptr : args.lse.as<float>(),
                  args.max_logits.empty() ? nullptr : args.max_logits.as<float>()};
  with_float_type(args.q.dtype, [&](auto q) {
    with_float_type(args.out.dtype, [&](auto out) {
      using Q = decltype(q);
      using Out = decltype(out);
      const bool round = context.numerics == Numerics::kOfficial;
      launch(*context.device, "sparse_mla",
             round ? sparse_mla_kernel<true, Q, Out> : sparse_mla_kernel<false, Q, Out>,
             {.grid = args.q.dim(0) * args.q.dim(1),
              .block = kThreads,
              .grid_y = ceil_div(heads, kHeads),
              .shared = kTile * d * static_cast<int64_t>(sizeof(float))},
             row_lists(args), shape, args.q.as<Q>(),
             args.sink.empty() ? nullptr : args.sink.as<float>(), args.out.as<Out>(), sums);
    });
  });
}

}  // namespace dsv4
