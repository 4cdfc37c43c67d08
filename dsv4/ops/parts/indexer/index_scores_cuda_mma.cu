// Tensor cores, kOfficial, packed keys of 128 dims (mma_scores.cuh). A CTA keeps its keys in
// registers for all queries that share them.

#include <algorithm>

#include "dsv4/device/launch.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/parts/indexer/indexer.h"
#include "dsv4/ops/parts/indexer/mma_scores.cuh"

namespace dsv4::indexer_kernel::cuda_mma {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kTiles = 2, kWarpKeys = kTileKeys * kTiles;  // of a warp
constexpr int kBlockKeys = kWarps * kWarpKeys;
constexpr int kMaxQueries = 8;  // of a CTA

struct Inputs {
  Queries queries;
  Keys keys;
  int num_queries, block_queries;
  const int32_t *pages, *sequence, *visible;
  int64_t pages_stride, scores_stride;
  float* scores;
  int n;
};

// Loads the keys of this warp, from `first` on; keys from `end` on are zeros.
__device__ void load_keys(const Inputs& in, const int32_t* pages, int first, int end,
                          KeyTile (&tiles)[kTiles]) {
  const int g = threadIdx.x % kWarp / 4;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const int s = first + 16 * tile + 8 * which + g;
      PackedDims dims{};
      if (s < end) dims = load_dims(in.keys, pages, s);
      decode_dims(dims, which, tiles[tile]);
    }
  }
}

// CTA (i, j): keys from i * kBlockKeys on, queries from j * block_queries on. Dynamic shared
// memory: the heads of one query and their weights.
template <class W>
__global__ void __launch_bounds__(kThreads, 2)
    index_scores_mma_kernel(Inputs in, const W* weights) {
  ptx::pdl_start();
  extern __shared__ uint4 b[];
  auto* pairs = reinterpret_cast<uint32_t*>(b + in.queries.b_words());
  const int begin = static_cast<int>(blockIdx.x) * kBlockKeys, end = min(begin + kBlockKeys, in.n);
  const int mine = begin + static_cast<int>(threadIdx.x) / kWarp * kWarpKeys;
  const int first = static_cast<int>(blockIdx.y) * in.block_queries;
  const int last = min(first + in.block_queries, in.num_queries);
  int held_sequence = -1, held_end = 0;
  KeyTile tiles[kTiles];
  for (int query = first; query < last; ++query) {
    float* scores = in.scores + query * in.scores_stride;
    const int seen = min(in.visible[query], end);
    if (seen <= begin) {
      for (int s = begin + threadIdx.x; s < end; s += kThreads) scores[s] = -INFINITY;
      continue;
    }
    const int sequence = in.sequence[query];
    if (sequence != held_sequence || seen > held_end) {
      load_keys(in, in.pages + sequence * in.pages_stride, mine, seen, tiles);
      held_sequence = sequence, held_end = seen;
    }
    __syncthreads();  // all warps have finished the previous query
    load_query(in.queries, query, weights, b, pairs);
    __syncthreads();
    float sums[kTiles][2] = {};
    score(tiles, b, pairs, in.queries.groups(), sums);
    const int g = threadIdx.x % kWarp / 4;
    if (threadIdx.x % 4 != 0) continue;
    for (int tile = 0; tile < kTiles; ++tile) {
      for (int r = 0; r < 2; ++r) {
        const int s = mine + 16 * tile + 8 * r + g;
        if (s >= end) continue;
        scores[s] = s < seen ? to_float(from_float<bf16>(sums[tile][r])) : -INFINITY;
      }
    }
  }
}

Inputs inputs_of(const IndexScoresArgs& args) {
  return {.queries = queries_of(args),
          .keys = keys_of(args.keys),
          .num_queries = static_cast<int>(args.q.dim(0)),
          .block_queries = 1,
          .pages = args.pages.as<int32_t>(),
          .sequence = args.sequence.as<int32_t>(),
          .visible = args.visible.as<int32_t>(),
          .pages_stride = args.pages.row_stride(),
          .scores_stride = args.scores.row_stride(),
          .scores = args.scores.as<float>(),
          .n = static_cast<int>(args.scores.dim(1))};
}

}  // namespace

const char* reject(const Context& context, const IndexScoresArgs& args) {
  if (context.numerics != Numerics::kOfficial) return "bf16 inside";
  return reject_operands(args);
}

void run(const Context& context, const IndexScoresArgs& args) {
  Inputs in = inputs_of(args);
  const int64_t key_blocks = ceil_div(in.n, kBlockKeys);
  // As many queries per CTA as leave at least two CTAs for each SM.
  const int64_t share = in.num_queries * key_blocks / (2 * context.device->info().num_sms);
  in.block_queries = static_cast<int>(std::clamp<int64_t>(share, 1, kMaxQueries));
  with_float_type(args.weights.dtype, [&](auto w) {
    using W = decltype(w);
    launch(*context.device, "index_scores", index_scores_mma_kernel<W>,
           {.grid = key_blocks,
            .block = kThreads,
            .grid_y = ceil_div(in.num_queries, in.block_queries),
            .shared = int64_t{16} * in.queries.b_words() + 4 * in.queries.weight_words(),
            .pdl = true},
           in, args.weights.as<W>());
  });
}

}  // namespace dsv4::indexer_kernel::cuda_mma
