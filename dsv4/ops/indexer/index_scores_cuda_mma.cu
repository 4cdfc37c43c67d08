// Tensor cores, kOfficial, packed keys of 128 dims: each mma has 16 keys and 8 heads, bf16 in, f32
// out. Both operands are exact: a key is e2m1 times a power of two, q is bf16. The result differs
// from the f32 implementation in the order of a dot product's additions and in the sum over heads,
// where four partial sums (heads 8i + 2j, 8i + 2j + 1, i ascending) are added pairwise. This f32
// error is far below the bf16 rounding that follows, so only sums close to a tie can round
// differently.
//
// A dot product may use its dims in any order, so lane j of four loads the 16 bytes of dims
// 32j .. 32j+31, one scale group, directly from the page, and q is arranged in shared memory to
// match. A CTA keeps its keys in registers for all queries that share them.

#include <algorithm>

#include "dsv4/device/alignment.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/mma.cuh"
#include "dsv4/device/ptx/packed.cuh"
#include "dsv4/ops/indexer/indexer_impls.h"

namespace dsv4 {
namespace {

constexpr int kWidth = 128, kCodeBytes = kWidth / 2, kScaleBytes = kWidth / 32;
constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kTiles = 2, kWarpKeys = 16 * kTiles;  // a warp has kTiles tiles of 16 keys
constexpr int kBlockKeys = kWarps * kWarpKeys;
constexpr int kMaxQueries = 8;       // of a CTA
constexpr int kSteps = kWidth / 16;  // of a dot product
constexpr int kMaxHeads = 128;

struct Inputs {
  const bf16* q;
  int64_t q_stride, q_head_stride, weight_stride, pages_stride, page_bytes, scores_stride;
  const uint8_t* key_pages;
  int page_entries, heads, num_queries;
  int block_queries;
  float weight_scale;
  const int32_t *pages, *sequence, *visible;
  float* scores;
  int n;
};

// Operand A of the mma: 16 keys, all dims.
struct KeyTile {
  uint32_t a[kSteps][4];
};

using ptx::as_bf162;
using ptx::as_bits;

// Two e2m1 codes as two bf16, times scale. The three bits of a code, read as a bf16, are 2^126 too
// small, subnormals included.
__device__ uint32_t decode_pair(uint32_t byte, __nv_bfloat162 scale) {
  const uint32_t fields =
      ((byte & 0x07) << 6) | ((byte & 0x08) << 12) | ((byte & 0x70) << 18) | ((byte & 0x80) << 24);
  const __nv_bfloat162 up = as_bf162(0x7e807e80);  // 2^126, twice
  return as_bits(__hmul2(__hmul2(as_bf162(fields), up), scale));
}

// 2^(code - 127) in bf16, twice.
__device__ __nv_bfloat162 decode_scale(uint32_t code) {
  const uint32_t bits = code == 255 ? 0x7fc0 : code == 0 ? 0x0040 : code << 7;
  return as_bf162(bits | bits << 16);
}

// This lane's dims of key s: dims 32j .. 32j+31, as a[step][which], a[step][which + 2].
__device__ void load_key(const Inputs& in, const int32_t* pages, int s, int j, int which,
                         KeyTile& tile) {
  const int entry = s % in.page_entries;
  const uint8_t* page = in.key_pages + pages[s / in.page_entries] * in.page_bytes;
  const uint4 codes = *reinterpret_cast<const uint4*>(page + entry * kCodeBytes + 16 * j);
  const __nv_bfloat162 scale =
      decode_scale(page[in.page_entries * kCodeBytes + entry * kScaleBytes + j]);
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const uint32_t word = words[step / 2] >> (step % 2 * 16);
    tile.a[step][which] = decode_pair(word & 0xff, scale);
    tile.a[step][which + 2] = decode_pair(word >> 8 & 0xff, scale);
  }
}

// Loads the keys of this warp, from `first` on; keys from `end` on are zeros.
__device__ void load_keys(const Inputs& in, const int32_t* pages, int first, int end,
                          KeyTile (&tiles)[kTiles]) {
  const int g = threadIdx.x % kWarp / 4, j = threadIdx.x % 4;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const int s = first + 16 * tile + 8 * which + g;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        tiles[tile].a[step][which] = tiles[tile].a[step][which + 2] = 0;
      }
      if (s < end) load_key(in, pages, s, j, which, tiles[tile]);
    }
  }
}

// One query in shared memory: heads [groups of 8][steps / 2] in the order in which each lane reads
// operand B of two steps, then the scaled weights, rounded to bf16, two heads per word.
template <class W>
__device__ void load_query(const Inputs& in, int64_t query, const W* weights, uint4* b,
                           uint32_t* pairs) {
  const int groups = static_cast<int>(ceil_div(in.heads, 8));
  for (int i = threadIdx.x; i < groups * 8 * (kWidth / 8); i += kThreads) {
    const int head = i / (kWidth / 8), chunk = i % (kWidth / 8);  // 8 dims
    const int lane = head % 8 * 4 + chunk / 4;                    // 32 dims per lane
    uint4 dims{};
    if (head < in.heads) {
      dims = *reinterpret_cast<const uint4*>(in.q + query * in.q_stride + head * in.q_head_stride +
                                             chunk * 8);
    }
    b[(head / 8 * (kSteps / 2) + chunk % 4) * kWarp + lane] = dims;
  }
  for (int i = threadIdx.x; i < groups * 4; i += kThreads) {
    float w[2];
    for (int x = 0; x < 2; ++x) {
      const int head = 2 * i + x;
      w[x] = head < in.heads ? to_float(weights[query * in.weight_stride + head]) * in.weight_scale
                             : 0.f;
    }
    pairs[i] = as_bits(__floats2bfloat162_rn(w[0], w[1]));
  }
}

// bf16(relu(bf16(dot)) * weight) of two heads, added to sum. NaN is kept.
__device__ float add_heads(float sum, float dot0, float dot1, __nv_bfloat162 weights) {
  const __nv_bfloat162 qk = __floats2bfloat162_rn(dot0, dot1);
  const __nv_bfloat162 relu = __hmax2_nan(qk, as_bf162(0));
  const float2 products = __bfloat1622float2(__hmul2(relu, weights));
  return sum + products.x + products.y;
}

// Scores of this warp's keys for the query in shared memory. sums[tile][r]: key 16 tile + 8 r + g,
// the same in the four lanes of g.
__device__ void score(const KeyTile (&tiles)[kTiles], const uint4* b, const uint32_t* weights,
                      int groups, float (&sums)[kTiles][2]) {
  const int lane = threadIdx.x % kWarp;
  for (int group = 0; group < groups; ++group) {
    float qk[kTiles][4] = {};
#pragma unroll
    for (int half = 0; half < kSteps / 2; ++half) {
      const uint4 dims = b[(group * (kSteps / 2) + half) * kWarp + lane];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        ptx::mma_m16n8k16_bf16(qk[tile], tiles[tile].a[2 * half], dims.x, dims.y);
        ptx::mma_m16n8k16_bf16(qk[tile], tiles[tile].a[2 * half + 1], dims.z, dims.w);
      }
    }
    const __nv_bfloat162 weight = as_bf162(weights[group * 4 + lane % 4]);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      sums[tile][0] = add_heads(sums[tile][0], qk[tile][0], qk[tile][1], weight);
      sums[tile][1] = add_heads(sums[tile][1], qk[tile][2], qk[tile][3], weight);
    }
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    for (int r = 0; r < 2; ++r) {
      sums[tile][r] += __shfl_xor_sync(~0u, sums[tile][r], 1);
      sums[tile][r] += __shfl_xor_sync(~0u, sums[tile][r], 2);
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
  const int groups = static_cast<int>(ceil_div(in.heads, 8));
  auto* pairs = reinterpret_cast<uint32_t*>(b + groups * (kSteps / 2) * kWarp);
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
    load_query(in, query, weights, b, pairs);
    __syncthreads();
    float sums[kTiles][2] = {};
    score(tiles, b, pairs, groups, sums);
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
  return {.q = args.q.as<bf16>(),
          .q_stride = args.q.stride[0],
          .q_head_stride = args.q.stride[1],
          .weight_stride = args.weights.row_stride(),
          .pages_stride = args.pages.row_stride(),
          .page_bytes = args.keys.pages.row_stride(),
          .scores_stride = args.scores.row_stride(),
          .key_pages = args.keys.pages.as<uint8_t>(),
          .page_entries = args.keys.page_entries,
          .heads = static_cast<int>(args.q.dim(1)),
          .num_queries = static_cast<int>(args.q.dim(0)),
          .block_queries = 1,
          .weight_scale = args.weight_scale,
          .pages = args.pages.as<int32_t>(),
          .sequence = args.sequence.as<int32_t>(),
          .visible = args.visible.as<int32_t>(),
          .scores = args.scores.as<float>(),
          .n = static_cast<int>(args.scores.dim(1))};
}

}  // namespace

const char* index_scores_cuda_mma_reject(const Context& context, const IndexScoresArgs& args) {
  if (context.numerics != Numerics::kOfficial) return "bf16 inside";
  if (!args.keys.packed() || args.q.dim(2) != kWidth) return "wants packed keys of 128 values";
  if (args.q.dtype != DType::kBF16) return "wants bf16 q";
  if (args.q.dim(1) > kMaxHeads) return "more than 128 heads";
  if (!rows_on(args.keys.pages, 16)) return "pages are not on 16 bytes";
  if (!rows_on(args.q, 16)) return "q is not on 16 bytes";
  return nullptr;
}

void index_scores_cuda_mma(const Context& context, const IndexScoresArgs& args) {
  Inputs in = inputs_of(args);
  const int64_t groups = ceil_div(in.heads, 8), key_blocks = ceil_div(in.n, kBlockKeys);
  // As many queries per CTA as leave at least two CTAs for each SM.
  const int64_t share = in.num_queries * key_blocks / (2 * context.device->info().num_sms);
  in.block_queries = static_cast<int>(std::clamp<int64_t>(share, 1, kMaxQueries));
  with_float_type(args.weights.dtype, [&](auto w) {
    using W = decltype(w);
    launch(*context.device, "index_scores", index_scores_mma_kernel<W>,
           {.grid = key_blocks,
            .block = kThreads,
            .grid_y = ceil_div(in.num_queries, in.block_queries),
            .shared = groups * (kSteps / 2 * kWarp * 16 + 4 * 4),
            .pdl = true},
           in, args.weights.as<W>());
  });
}

}  // namespace dsv4
