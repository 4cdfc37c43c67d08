// Tensor cores, kOfficial, packed rows of 448 + 64 values. Operands are exact: a cache row is e4m3
// times a power of two, or bf16; q is bf16; weights are bf16 by the contract.
//
// A block is one query, 64 or 16 heads, and one segment of its list. It walks over tiles of 64
// valid rows: the packed bytes of the next tile arrive in the background while this one is decoded
// to bf16 in shared memory and multiplied twice:
//
//   Z [heads, 64] = Q K^T     a warp: 16 heads x 8 or 32 keys
//   O [heads, 512] += P K     a warp: all heads x 64 columns, in registers
//
// The softmax is online: a weight is rounded relative to the largest logit of its tile and those
// before, not of the whole list. Either rounding is off by 2^-9 of the weight at most and the
// largest weight is exactly 1 when it is met, so an output moves by less than 2^-8 of the share of
// the other weights: the tolerance of the contract's rounding.
//
// Batch invariance: a row's arithmetic depends on nothing but its list. Segments have a fixed
// length, blocks of 16 heads (few queries) and of 64 (many) add in the same order, and lists of
// several segments are combined in order by a second kernel.

#include "dsv4/device/alignment.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/device/ptx/cp_async.cuh"
#include "dsv4/ops/sparse_mla/mma_products.cuh"
#include "dsv4/ops/sparse_mla/sparse_mla_cuda.h"

namespace dsv4 {
namespace {

using namespace mla;  // NOLINT: the other half of this file

constexpr int64_t kPartialBytes = 256ll << 20;  // workspace for segments of a launch, about

struct Inputs {
  RowLists lists;
  const bf16* q;
  QueryStrides q_strides, out_strides, lse_strides, max_strides;
  int first_query;  // of this launch
  int heads, segments;
  float scale;
  bool normalized;
  const float* sink;        // or null
  float *lse, *max_logits;  // or null
  // Several segments: sums of weighed rows and what they are relative to.
  float* partial;   // [queries of a launch, heads, segments, 512]
  float2* summary;  // [queries of a launch, heads, segments]: largest dot, -inf for none; sum of
                    // weights

  // First element of a head of the launch's query `local`.
  __device__ int64_t at(const QueryStrides& strides, int local, int head) const {
    return strides.at(first_query + local, lists.s_q, head);
  }
};

// exp(scale (dot - largest)).
__device__ float weight_of(float dot, float largest, float scale) {
  return exp2f((dot - largest) * (scale * 1.4426950408889634f));
}

// --- softmax ----------------------------------------------------------------------------------

// Largest of a tile's dots of one head, over the parts of its keys.
template <int kMTiles>
__device__ float tile_maximum(const Shared<16 * kMTiles>& shared, int head) {
  float largest = shared.maxima[0][head];
  for (int part = 1; part < Split<kMTiles>::kParts; ++part) {
    largest = fmaxf(largest, shared.maxima[part][head]);
  }
  return largest;
}

// What a warp knows of its 16 heads of Z: rows g and g + 8.
template <int kMTiles>
struct Weights {
  using S = Split<kMTiles>;
  float largest[2] = {-INFINITY, -INFINITY};
  float sums[S::kNTiles][2] = {};  // of this lane's two columns of each group of keys

  // Dots of keys past the end become -inf; the maxima of this part go to shared memory.
  __device__ void mask_and_share(float (&z)[S::kNTiles][4], int keys_left,
                                 Shared<S::kHeads>& shared) const {
    const int g = threadIdx.x % kWarp / 4, j = threadIdx.x % 4;
    float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int n = 0; n < S::kNTiles; ++n) {
      for (int i = 0; i < 4; ++i) {
        const int key = 8 * (S::part() * S::kNTiles + n) + 2 * j + i % 2;
        if (key >= keys_left) z[n][i] = -INFINITY;
        top[i / 2] = fmaxf(top[i / 2], z[n][i]);
      }
    }
    for (int r = 0; r < 2; ++r) {
      top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
      top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
      if (j == 0) shared.maxima[S::part()][16 * S::m_tile() + 8 * r + g] = top[r];
    }
  }

  // Dots to weights, rounded, in shared memory; the sums keep them unrounded.
  __device__ void weigh(const float (&z)[S::kNTiles][4], float scale, Shared<S::kHeads>& shared) {
    const int g = threadIdx.x % kWarp / 4, j = threadIdx.x % 4;
    for (int r = 0; r < 2; ++r) {
      const int head = 16 * S::m_tile() + 8 * r + g;
      const float now = fmaxf(largest[r], tile_maximum<kMTiles>(shared, head));
      const float shrink = weight_of(largest[r], now, scale);
      largest[r] = now;
#pragma unroll
      for (int n = 0; n < S::kNTiles; ++n) {
        const float e0 = weight_of(z[n][2 * r], now, scale);
        const float e1 = weight_of(z[n][2 * r + 1], now, scale);
        sums[n][r] = fmaf(sums[n][r], shrink, __fadd_rn(e0, e1));
        const int column = 8 * (S::part() * S::kNTiles + n) + 2 * j;
        *reinterpret_cast<__nv_bfloat162*>(&shared.weights[head][column]) =
            __floats2bfloat162_rn(e0, e1);
      }
    }
  }

  __device__ void share_sums(Shared<S::kHeads>& shared) const {
    const int g = threadIdx.x % kWarp / 4, j = threadIdx.x % 4;
    for (int n = 0; n < S::kNTiles; ++n) {
      for (int r = 0; r < 2; ++r) {
        float sum = sums[n][r];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (j != 0) continue;
        shared.sums[S::part() * S::kNTiles + n][16 * S::m_tile() + 8 * r + g] = sum;
      }
    }
  }
};

// The output of all heads of the block, this warp's columns, relative to `largest`.
template <int kMTiles>
struct Output {
  float values[kMTiles][kOutTiles][4] = {};
  float largest[kMTiles][2];

  __device__ Output() {
    for (int m = 0; m < kMTiles; ++m) largest[m][0] = largest[m][1] = -INFINITY;
  }

  __device__ void rescale(float scale, const Shared<16 * kMTiles>& shared) {
    const int g = threadIdx.x % kWarp / 4;
#pragma unroll
    for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float now = fmaxf(largest[m][r], tile_maximum<kMTiles>(shared, 16 * m + 8 * r + g));
        const float shrink = weight_of(largest[m][r], now, scale);
        largest[m][r] = now;
        for (int n = 0; n < kOutTiles; ++n) {
          values[m][n][2 * r] *= shrink;
          values[m][n][2 * r + 1] *= shrink;
        }
      }
    }
  }
};

// What finishes one head: 1 / (sum + sink), lse and max_logits. No valid row: largest is -inf.
__device__ float finish_head(const Inputs& in, int query, int head, float largest, float sum,
                             bool writes_sums) {
  const bool any = largest > -INFINITY;
  const float top = in.scale * largest;
  if (writes_sums && in.lse != nullptr) {
    in.lse[in.at(in.lse_strides, query, head)] = any ? top + logf(sum) : INFINITY;
  }
  if (writes_sums && in.max_logits != nullptr) {
    in.max_logits[in.at(in.max_strides, query, head)] = top;
  }
  if (!any) return 0.f;
  if (!in.normalized) return 1.f;
  return 1.f / (in.sink == nullptr ? sum : sum + expf(in.sink[head] - top));
}

__device__ void store_pair(bf16* to, float a, float b) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}
__device__ void store_pair(float* to, float a, float b) {
  to[0] = a;
  to[1] = b;
}

// One segment: the output itself. Several: its part.
template <int kMTiles, class Out>
__device__ void store(const Inputs& in, const Output<kMTiles>& output, int first_head, Out* out,
                      const Shared<16 * kMTiles>& shared) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, j = lane % 4, warp = threadIdx.x / kWarp;
  const int query = static_cast<int>(blockIdx.x);
  const bool writes_summary = warp == 0 && j == 0;
#pragma unroll
  for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int local = 16 * m + 8 * r + g, head = first_head + local;
      if (head >= in.heads) continue;
      float sum = 0.f;
      for (int w = 0; w < kWarps; ++w) sum += shared.sums[w][local];
      const float largest = output.largest[m][r];
      const int column = warp * kColumns + 2 * j;
      if (in.segments > 1) {
        const int64_t at = (int64_t{query} * in.heads + head) * in.segments + blockIdx.z;
        if (writes_summary) in.summary[at] = {largest, sum};
        if (largest == -INFINITY) continue;
        float* to = in.partial + at * kWidth + column;
        for (int n = 0; n < kOutTiles; ++n) {
          const float* pair = output.values[m][n] + 2 * r;
          *reinterpret_cast<float2*>(to + 8 * n) = {pair[0], pair[1]};
        }
        continue;
      }
      const float factor = finish_head(in, query, head, largest, sum, writes_summary);
      Out* to = out + in.at(in.out_strides, query, head) + column;
      for (int n = 0; n < kOutTiles; ++n) {
        const float* pair = output.values[m][n] + 2 * r;
        store_pair(to + 8 * n, pair[0] * factor, pair[1] * factor);
      }
    }
  }
}

template <int kHeads>
__device__ void load_queries(const Inputs& in, int first_head, Shared<kHeads>& shared) {
  constexpr int kRowChunks = kWidth / 8;
  for (int i = threadIdx.x; i < kHeads * kRowChunks; i += kThreads) {
    const int head = i / kRowChunks, column = i % kRowChunks * 8;
    const int64_t from = in.at(in.q_strides, static_cast<int>(blockIdx.x), first_head + head);
    auto* to = reinterpret_cast<uint4*>(shared.q[head] + column);
    if (first_head + head < in.heads) {
      ptx::cp_async<16>(to, in.q + from + column);
    } else {
      *to = {0, 0, 0, 0};
    }
  }
}

// The valid rows of a segment; returns their number. All ids are on their way before one is used.
template <int kHeads>
__device__ int load_rows(const Inputs& in, int begin, Shared<kHeads>& shared) {
  const QueryRows lists = query_rows(in.lists, in.first_query + static_cast<int>(blockIdx.x));
  const int end = min(begin + kSegment, lists.length());
  int32_t mine[kSegment / kThreads];
#pragma unroll
  for (int i = 0; i < kSegment / kThreads; ++i) {
    const int position = begin + i * kThreads + static_cast<int>(threadIdx.x);
    mine[i] = listed_row(lists, position, end);
  }
  int count = 0;
#pragma unroll
  for (int i = 0; i < kSegment / kThreads; ++i) {
    if (begin + i * kThreads >= end) break;
    count = append_rows<kThreads>(mine[i], shared.rows, count, shared.counts);
  }
  return count;
}

// Block (i, y, s): query i, heads y * 16 kMTiles ..., list positions s * kSegment ...
template <int kMTiles, class Out>
__global__ void __launch_bounds__(kThreads, 1) sparse_mla_mma_kernel(Inputs in, Out* out) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<16 * kMTiles>*>(memory);
  const int first_head = static_cast<int>(blockIdx.y) * 16 * kMTiles;
  load_queries(in, first_head, shared);
  const int count = load_rows(in, static_cast<int>(blockIdx.z) * kSegment, shared);
  __syncthreads();
  shared.tile.fetch(in.lists, shared.rows, 0, count);
  ptx::cp_async_wait_all();
  __syncthreads();
  const Queries<kMTiles> queries(shared);

  Output<kMTiles> output;
  Weights<kMTiles> weights;
  for (int first = 0; first < count; first += kTile) {
    ptx::cp_async_wait_all();
    __syncthreads();  // the last tile has been used; other lanes' scales are there
    shared.tile.decode();
    __syncthreads();
    shared.tile.fetch(in.lists, shared.rows, first + kTile, count);
    float z[Split<kMTiles>::kNTiles][4] = {};
    multiply_keys<kMTiles>(shared, queries, z);
    weights.mask_and_share(z, count - first, shared);
    __syncthreads();
    weights.weigh(z, in.scale, shared);
    output.rescale(in.scale, shared);
    __syncthreads();
    multiply_values<kMTiles>(shared, output.values);
  }
  weights.share_sums(shared);
  __syncthreads();
  store(in, output, first_head, out, shared);
}

constexpr int kCombineThreads = kWidth / 4;

// Block (i, h): query i, head h. Segments in order.
template <class Out>
__global__ void __launch_bounds__(kCombineThreads) combine_kernel(Inputs in, Out* out) {
  const int query = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y), column = 4 * static_cast<int>(threadIdx.x);
  const int64_t at = (int64_t{query} * in.heads + head) * in.segments;
  float largest = -INFINITY;
  for (int s = 0; s < in.segments; ++s) largest = fmaxf(largest, in.summary[at + s].x);
  float sum = 0.f;
  float4 values{0.f, 0.f, 0.f, 0.f};
  for (int s = 0; s < in.segments; ++s) {
    const float2 summary = in.summary[at + s];
    if (summary.x == -INFINITY) continue;
    const float share = weight_of(summary.x, largest, in.scale);
    const float4 part = *reinterpret_cast<const float4*>(in.partial + (at + s) * kWidth + column);
    sum = fmaf(share, summary.y, sum);
    values.x = fmaf(share, part.x, values.x);
    values.y = fmaf(share, part.y, values.y);
    values.z = fmaf(share, part.z, values.z);
    values.w = fmaf(share, part.w, values.w);
  }
  const float factor = finish_head(in, query, head, largest, sum, threadIdx.x == 0);
  Out* to = out + in.at(in.out_strides, query, head) + column;
  store_pair(to, values.x * factor, values.y * factor);
  store_pair(to + 2, values.z * factor, values.w * factor);
}

template <int kMTiles, class Out>
void attend(Device& device, const Inputs& in, int64_t queries, Out* out) {
  launch(device, "sparse_mla", sparse_mla_mma_kernel<kMTiles, Out>,
         {.grid = queries,
          .block = kThreads,
          .grid_y = ceil_div(in.heads, 16 * kMTiles),
          .grid_z = in.segments,
          .shared = sizeof(Shared<16 * kMTiles>)},
         in, out);
}

int segments_of(int64_t listed_rows) {
  return static_cast<int>(std::max<int64_t>(1, ceil_div(listed_rows, kSegment)));
}

// What a launch leaves for the second kernel, of the queries that fit kPartialBytes; one segment
// leaves nothing.
struct Parts {
  int64_t run = 0;    // queries of a launch
  TensorView values;  // [run * heads * segments, 512]
  TensorView sums;    // [run * heads * segments, 2]
};

Parts take_parts(Scratch& workspace, int64_t queries, int64_t heads, int segments) {
  if (segments == 1) return {.run = queries};
  const int64_t query_bytes = heads * segments * (kWidth + 2) * 4;
  const int64_t run = std::min(queries, std::max<int64_t>(1, kPartialBytes / query_bytes));
  const int64_t parts = run * heads * segments;
  return {.run = run,
          .values = workspace.take(DType::kF32, {parts, kWidth}),
          .sums = workspace.take(DType::kF32, {parts, 2})};
}

// Queries in runs whose parts fit the workspace.
template <class Out>
void attend_in_runs(const Context& context, Inputs in, int64_t queries, Out* out) {
  Device& device = *context.device;
  const Scratch::Scope scope(device.workspace());
  const Parts parts = take_parts(device.workspace(), queries, in.heads, in.segments);
  if (in.segments > 1) {
    in.partial = parts.values.as<float>();
    in.summary = reinterpret_cast<float2*>(parts.sums.data);
  }
  const bool few = queries * ceil_div(in.heads, 16) * in.segments <= device.info().num_sms;
  const bool wide =
      !few && device.info().max_smem_per_block >= static_cast<int>(sizeof(Shared<64>));
  for (int64_t first = 0; first < queries; first += parts.run) {
    const int64_t n = std::min(parts.run, queries - first);
    wide ? attend<4>(device, in, n, out) : attend<1>(device, in, n, out);
    if (in.segments > 1) {
      launch(device, "sparse_mla combine", combine_kernel<Out>,
             {.grid = n, .block = kCombineThreads, .grid_y = in.heads}, in, out);
    }
    in.first_query += static_cast<int>(n);
  }
}

const char* reject_list(const KvList& list) {
  if (list.rows.rank == 0 || list.rows.numel() == 0) return nullptr;
  const KvPool& pool = list.pool;
  if (!pool.packed() || pool.layout.v32() || pool.layout.nope != kPackedLayout.nope ||
      pool.layout.rope != kPackedLayout.rope)
    return "wants packed V4 rows of 448 + 64 values";
  if (!rows_on(pool.pages, 16)) return "pages are not on 16 bytes";
  return nullptr;
}

}  // namespace

const char* sparse_mla_mma_reject(const Context& context, const SparseMlaArgs& args) {
  if (context.numerics != Numerics::kOfficial) return "bf16 inside";
  if (args.q.dtype != DType::kBF16 || args.q.dim(-1) != kWidth) return "wants bf16 q of 512 values";
  if (args.out.dim(-1) != kWidth) return "wants out of 512 values";
  if (args.q.dim(-2) < 16) return "fewer than 16 heads";
  if (!rows_on(args.q, 16) || !rows_on(args.out, 16)) return "q or out is not on 16 bytes";
  if (context.device->info().max_smem_per_block < static_cast<int>(sizeof(Shared<16>)))
    return "wants 130 KiB of shared memory";
  if (const char* reason = reject_list(args.window)) return reason;
  return reject_list(args.compressed);
}

void sparse_mla_mma(const Context& context, const SparseMlaArgs& given) {
  const SparseMlaArgs args = by_request(given);
  Inputs in{.lists = row_lists(args),
            .q = args.q.as<bf16>(),
            .q_strides = row_strides(args.q),
            .out_strides = row_strides(args.out),
            .lse_strides = sum_strides(args.lse),
            .max_strides = sum_strides(args.max_logits),
            .first_query = 0,
            .heads = static_cast<int>(args.q.dim(2)),
            .segments = 1,
            .scale = args.scale,
            .normalized = args.normalized,
            .sink = args.sink.empty() ? nullptr : args.sink.as<float>(),
            .lse = args.lse.empty() ? nullptr : args.lse.as<float>(),
            .max_logits = args.max_logits.empty() ? nullptr : args.max_logits.as<float>(),
            .partial = nullptr,
            .summary = nullptr};
  in.segments = segments_of(in.lists.length());
  with_float_type(args.out.dtype, [&](auto out) {
    using Out = decltype(out);
    attend_in_runs(context, in, args.q.dim(0) * args.q.dim(1), args.out.as<Out>());
  });
}

int64_t sparse_mla_mma_workspace(const Context&, const SparseMlaArgs& given) {
  const SparseMlaArgs args = by_request(given);
  Scratch count = Scratch::counting();
  take_parts(count, args.q.dim(0) * args.q.dim(1), args.q.dim(2),
             segments_of(listed(args.window) + listed(args.compressed)));
  return count.peak_bytes();
}

}  // namespace dsv4
