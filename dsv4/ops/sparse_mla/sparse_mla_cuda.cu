// f32 arithmetic for any shape. A block is one query and a group of heads, a warp one head. The
// list is walked twice: first for the largest logit, then for weights, their sum and the output, so
// that weights are rounded as the contract says: relative to the final maximum.
//
// Rows are decoded to f32 in shared memory, a tile at a time. Lane l of a warp owns columns
// l, l + 32, ... of its head's output, in registers.

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/sparse_mla/row_lists.cuh"
#include "dsv4/ops/sparse_mla/sparse_mla_cuda.h"

namespace dsv4 {
namespace {

constexpr int kThreads = 256, kHeads = kThreads / kWarp;
constexpr int kTile = 16;       // keys decoded at a time
constexpr int kMaxWidth = 512;  // bounds the registers for the output

struct Shape {
  int64_t q_stride, q_head_stride, out_stride, out_head_stride, lse_stride;
  int heads, d;
  float scale;
};

struct Shared {
  int32_t rows[kThreads];
  int sums[kHeads];
};

// keys: [count, d]; by the whole block.
__device__ void decode_tile(const RowLists& lists, const int32_t* rows, int count, int d,
                            float* keys) {
  for (int j = 0; j < count; ++j) {
    const PoolPointer pool = pool_of(lists, rows[j]);
    const Place at = find_row(pool, rows[j]);
    if (!pool.packed) {
      const float* values = reinterpret_cast<const float*>(at.page) + int64_t{at.entry} * d;
      for (int c = threadIdx.x; c < d; c += kThreads) keys[j * d + c] = values[c];
      continue;
    }
    const KvLayout& layout = pool.layout;
    const uint8_t* codes = at.page + layout.entry_offset(at.entry);
    const uint8_t* scales = at.page + layout.scale_offset(pool.page_entries, at.entry);
    const auto* rope = reinterpret_cast<const bf16*>(codes + layout.nope);
    for (int c = threadIdx.x; c < d; c += kThreads) {
      keys[j * d + c] = c < layout.nope
                            ? e4m3_to_f32(codes[c]) * ue8m0_to_f32(scales[c / KvLayout::kGroup])
                            : to_float(rope[c - layout.nope]);
    }
  }
}

// q, key: [d]; every lane gets the sum.
__device__ float dot(const float* q, const float* key, int d) {
  float sum = 0.f;
  for (int c = threadIdx.x % kWarp; c < d; c += kWarp) sum = fmaf(q[c], key[c], sum);
  return warp_sum(sum);
}

// Calls visit(key) for every valid row of the list in order; key: [d] f32 in shared memory.
template <class Visit>
__device__ void for_each_key(const RowLists& lists, int64_t query, int d, float* keys,
                             Shared& shared, const Visit& visit) {
  const int length = lists.length();
  for (int begin = 0; begin < length; begin += kThreads) {
    const int32_t mine = listed_row(lists, query, begin + static_cast<int>(threadIdx.x), length);
    const int count = append_rows<kThreads>(mine, shared.rows, 0, shared.sums);
    for (int tile = 0; tile < count; tile += kTile) {
      const int n = min(kTile, count - tile);
      __syncthreads();  // rows are there, the last tile has been used
      decode_tile(lists, shared.rows + tile, n, d, keys);
      __syncthreads();
      for (int j = 0; j < n; ++j) visit(keys + j * d);
    }
  }
}

// Columns a lane may own.
constexpr int kColumns = kMaxWidth / kWarp;

// Block (i, g): query i, heads g * kHeads ... Dynamic shared memory: kHeads + kTile rows of d
// floats.
template <bool kRound, class Q, class Out>
__global__ void __launch_bounds__(kThreads)
    sparse_mla_kernel(RowLists lists, Shape shape, const Q* q, const float* sink, Out* out,
                      float* lse) {
  extern __shared__ float memory[];
  __shared__ Shared shared;
  const int d = shape.d, lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int head = static_cast<int>(blockIdx.y) * kHeads + warp;
  const int64_t query = blockIdx.x;
  const bool exists = head < shape.heads;
  float *mine = memory + warp * d, *keys = memory + kHeads * d;
  const int64_t from = query * shape.q_stride + head * shape.q_head_stride;
  for (int c = lane; c < d; c += kWarp) mine[c] = exists ? to_float(q[from + c]) : 0.f;

  float largest = -INFINITY;
  bool any = false;
  for_each_key(lists, query, d, keys, shared, [&](const float* key) {
    largest = fmaxf(largest, dot(mine, key, d));
    any = true;
  });
  largest *= shape.scale;

  float sum = 0.f, values[kColumns] = {};
  for_each_key(lists, query, d, keys, shared, [&](const float* key) {
    const float e = expf(__fmul_rn(shape.scale, dot(mine, key, d)) - largest);
    const float weight = kRound ? to_float(from_float<bf16>(e)) : e;
    sum += e;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const int c = i * kWarp + lane;
      if (c < d) values[i] = fmaf(weight, key[c], values[i]);
    }
  });
  if (!exists) return;
  if (lse != nullptr && lane == 0) {
    lse[query * shape.lse_stride + head] = any ? largest + logf(sum) : INFINITY;
  }
  if (any && sink != nullptr) sum += expf(sink[head] - largest);
  const float factor = any ? 1.f / sum : 0.f;
  out += query * shape.out_stride + head * shape.out_head_stride;
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const int c = i * kWarp + lane;
    if (c < d) out[c] = from_float<Out>(values[i] * factor);
  }
}

int64_t shared_bytes(const SparseMlaArgs& args) {
  return (kHeads + kTile) * args.q.dim(2) * static_cast<int64_t>(sizeof(float));
}

}  // namespace

const char* sparse_mla_cuda_reject(const Context&, const SparseMlaArgs& args) {
  return args.q.dim(2) > kMaxWidth ? "rows of more than 512 values" : nullptr;
}

void sparse_mla_cuda(const Context& context, const SparseMlaArgs& args) {
  const int64_t heads = args.q.dim(1);
  const Shape shape{.q_stride = args.q.stride[0],
                    .q_head_stride = args.q.stride[1],
                    .out_stride = args.out.stride[0],
                    .out_head_stride = args.out.stride[1],
                    .lse_stride = args.lse.empty() ? 0 : args.lse.row_stride(),
                    .heads = static_cast<int>(heads),
                    .d = static_cast<int>(args.q.dim(2)),
                    .scale = args.scale};
  with_float_type(args.q.dtype, [&](auto q) {
    with_float_type(args.out.dtype, [&](auto out) {
      using Q = decltype(q);
      using Out = decltype(out);
      const bool round = context.numerics == Numerics::kOfficial;
      launch(*context.device, "sparse_mla",
             round ? sparse_mla_kernel<true, Q, Out> : sparse_mla_kernel<false, Q, Out>,
             {.grid = args.q.dim(0),
              .block = kThreads,
              .grid_y = ceil_div(heads, kHeads),
              .shared = shared_bytes(args)},
             row_lists(args), shape, args.q.as<Q>(),
             args.sink.empty() ? nullptr : args.sink.as<float>(), args.out.as<Out>(),
             args.lse.empty() ? nullptr : args.lse.as<float>());
    });
  });
}

}  // namespace dsv4
