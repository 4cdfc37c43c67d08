// Portable block scores: f32 FMAs, correct for every shape, not tuned.
//
//   CTA     a query block of one head: up to 32 rows (groups of queries)
//   tile    64 columns (groups of keys); slices of 64 columns of d in shared memory
//   passes  two over the tiles: maximum and sum of every row, then its probabilities, added by
//           block. Scores are computed again: nothing of their size is stored.

#include "dsv4/ops/xattn/scores/xattn_scores.h"

#include "dsv4/device/launch.cuh"
#include "dsv4/device/math.cuh"
#include "dsv4/ops/xattn/scores/groups.h"

namespace dsv4::xattn_scores_kernel::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kRows = 32, kColumns = 64, kSlice = 64;
constexpr int kPerThread = kRows * kColumns / kThreads;  // rows of a thread's column

struct Params {
  const int *cu_q, *cu_kv;
  bool causal;
  int heads, group, q_blocks, k_blocks, block, stride, d;
  int64_t q_row, q_head;
  KvAddress k_at;
  float scale;  // of a score
  float* sums;
};

struct Tiles {
  float q[kRows][kSlice + 1], k[kColumns][kSlice + 1];
  float scores[kRows][kColumns + 1];
  float largest[kRows], total[kRows];
};

// The query block of this CTA.
struct Item {
  int index, head, kv_head;
  PrefillSequence sequence;
  Groups groups;
  int first, rows;  // groups first .. first + rows - 1
};

// tiles.scores = the scores of `columns` groups from `column` on, times scale; -inf where a row
// does not see a column.
template <class T>
__device__ void score_tile(const Params& params, const Item& item, const T* q, const T* k,
                           int column, Tiles& tiles) {
  float sums[kPerThread] = {};
  const int mine = threadIdx.x % kColumns, row = threadIdx.x / kColumns;
  const PrefillSequence& s = item.sequence;
  for (int token = 0; token < params.stride; ++token) {
    for (int begin = 0; begin < params.d; begin += kSlice) {
      const int width = min(kSlice, params.d - begin);
      __syncthreads();  // the slice before has been used
      for (int i = threadIdx.x; i < kRows * kSlice; i += kThreads) {
        const int r = i / kSlice, c = i % kSlice;
        const int query =
            (item.first + r) * params.stride + params.stride - 1 - token - s.first_position;
        const bool there = r < item.rows && c < width && 0 <= query && query < s.queries;
        const int64_t at = (s.first_q + query) * params.q_row + item.head * params.q_head;
        tiles.q[r][c] = there ? to_float(q[at + begin + c]) : 0.f;
      }
      for (int i = threadIdx.x; i < kColumns * kSlice; i += kThreads) {
        const int r = i / kSlice, c = i % kSlice, key = (column + r) * params.stride + token;
        tiles.k[r][c] =
            c < width && key < s.keys
                ? to_float(k[params.k_at(item.index, s.first_kv, key, item.kv_head) + begin + c])
                : 0.f;
      }
      __syncthreads();
      for (int c = 0; c < width; ++c) {
        const float b = tiles.k[mine][c];
#pragma unroll
        for (int i = 0; i < kPerThread; ++i) {
          sums[i] = fmaf(tiles.q[row + i * (kThreads / kColumns)][c], b, sums[i]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int r = row + i * (kThreads / kColumns);
    const bool seen = column + mine < item.groups.visible(item.first + r);
    tiles.scores[r][mine] = seen ? sums[i] * params.scale : -INFINITY;
  }
  __syncthreads();
}

// Maximum and sum of every row over one more tile.
__device__ void add_to_softmax(Tiles& tiles) {
  const int lane = threadIdx.x % kWarp;
  for (int r = threadIdx.x / kWarp; r < kRows; r += kWarps) {
    const float a = tiles.scores[r][lane], b = tiles.scores[r][lane + kWarp];
    const float before = tiles.largest[r], now = fmaxf(before, warp_max(fmaxf(a, b)));
    if (now == -INFINITY) continue;
    const float sum = warp_sum(expf(a - now) + expf(b - now));
    if (lane == 0) {
      tiles.total[r] = tiles.total[r] * expf(before - now) + sum;
      tiles.largest[r] = now;
    }
  }
}

// Adds up the blocks of a tile; sums: of the tile's first block.
__device__ void add_blocks(const Params& params, const Item& item, int columns, Tiles& tiles,
                           float* sums) {
  const int lane = threadIdx.x % kWarp, per_block = params.block / params.stride;
  for (int b = threadIdx.x / kWarp; b * per_block < columns; b += kWarps) {
    float sum = 0.f;
    for (int i = lane; i < item.rows * per_block; i += kWarp) {
      const int r = i / per_block;
      const float score = tiles.scores[r][b * per_block + i % per_block];
      if (score > -INFINITY) sum += expf(score - tiles.largest[r]) / tiles.total[r];
    }
    sum = warp_sum(sum);
    if (lane == 0) sums[b] = sum;
  }
}

// CTA (x, y, z): query block, head, sequence.
template <class T>
__global__ void __launch_bounds__(kThreads) score_kernel(Params params, const T* q, const T* k) {
  __shared__ Tiles tiles;
  const int row = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
  const int index = static_cast<int>(blockIdx.z);
  const int64_t at = (static_cast<int64_t>(index) * params.heads + head) * params.q_blocks + row;
  float* sums = params.sums + at * params.k_blocks;
  const PrefillSequence s = prefill_sequence(params.cu_q, params.cu_kv, index, params.causal);
  const Groups groups = groups_of(s, params.stride);
  const int per_block = params.block / params.stride;
  const int first = max((s.first_block(params.block) + row) * per_block, groups.first_row);
  const int end = min((s.first_block(params.block) + row + 1) * per_block, groups.end_row);
  const int columns = first < end ? groups.visible(end - 1) : 0;
  for (int j = threadIdx.x; j < params.k_blocks; j += kThreads) {
    if (j * per_block >= columns) sums[j] = 0.f;
  }
  if (columns == 0) return;
  const Item item{.index = index,
                  .head = head,
                  .kv_head = head / params.group,
                  .sequence = s,
                  .groups = groups,
                  .first = first,
                  .rows = end - first};
  for (int r = threadIdx.x; r < kRows; r += kThreads) {
    tiles.largest[r] = -INFINITY;
    tiles.total[r] = 0.f;
  }
  for (int column = 0; column < columns; column += kColumns) {
    score_tile(params, item, q, k, column, tiles);
    add_to_softmax(tiles);
  }
  for (int column = 0; column < columns; column += kColumns) {
    score_tile(params, item, q, k, column, tiles);
    add_blocks(params, item, min(kColumns, columns - column), tiles, sums + column / per_block);
  }
}

}  // namespace

const char* reject(const Context&, const XattnScoresArgs& args) {
  if (args.block / args.stride > kRows) return "wants a stride of at least block / 32";
  if (args.batch.size() > 65535 || args.q.dim(1) > 65535)
    return "more than 65535 sequences or heads";
  return nullptr;
}

void run(const Context& context, const XattnScoresArgs& args) {
  const Params params{
      .cu_q = args.batch.cu_q.as<int>(),
      .cu_kv = args.batch.cu_kv.as<int>(),
      .causal = args.batch.causal,
      .heads = static_cast<int>(args.q.dim(1)),
      .group = static_cast<int>(args.q.dim(1) / args.k.dim(-2)),
      .q_blocks = static_cast<int>(args.sums.dim(2)),
      .k_blocks = static_cast<int>(args.sums.dim(3)),
      .block = static_cast<int>(args.block),
      .stride = static_cast<int>(args.stride),
      .d = static_cast<int>(args.q.dim(2)),
      .q_row = args.q.stride[0],
      .q_head = args.q.stride[1],
      .k_at = kv_address(args.k, args.page_table),
      .scale = args.scale / static_cast<float>(args.stride),
      .sums = args.sums.as<float>(),
  };
  with_stored_type(args.q.dtype, [&](auto element) {
    using T = decltype(element);
    launch(*context.device, "xattn_scores", score_kernel<T>,
           {.grid = args.sums.dim(2),
            .block = kThreads,
            .grid_y = args.q.dim(1),
            .grid_z = args.batch.size()},
           params, args.q.as<T>(), args.k.as<T>());
  });
}

}  // namespace dsv4::xattn_scores_kernel::cuda
