// Two kernels: the first pools entries and reads the states, the second updates the states. In the
// first, the eight warps of a CTA share the rows of an entry and each lane has four columns; in the
// second, each thread has one column of a few rows.
//
// The sequence of an output row depends on device memory: each CTA finds it by a prefix sum over
// the numbers of closed blocks.

#include "dsv4/device/launch.cuh"
#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/compressor/compressor_impls.h"

namespace dsv4 {
namespace {

constexpr int kPoolWarps = 8, kPoolThreads = kPoolWarps * kWarp;
constexpr int kLaneColumns = 4, kPoolColumns = kLaneColumns * kWarp;
constexpr int kStateThreads = 128;  // columns of a CTA of the second kernel
constexpr int kStateRows = 8;       // rows of a state that it updates

struct Inputs {
  StateLayout layout;
  const float *kv, *gate, *ape;  // rows of layout.columns()
  int64_t kv_stride, gate_stride, ape_stride;
  const int32_t *cu_tokens, *start, *slots;
  int num_sequences;
  float* state;
  int64_t state_stride;
};

struct Sequence {
  int first_token, start, end;  // positions [start, end) are input rows first_token ...
  float* state;
};

__device__ Sequence sequence_at(const Inputs& in, int i) {
  const int first = in.cu_tokens[i], count = in.cu_tokens[i + 1] - first;
  return {first, in.start[i], in.start[i] + count,
          count > 0 ? in.state + in.slots[i] * in.state_stride : nullptr};
}

// One token: its values, its gates, and the ape to add to the gates (null: already added).
struct TokenRow {
  const float *kv, *gate, *ape;

  // Branch-free, so that loads of several columns and rows are in flight together.
  __device__ float logit(int column) const {
    const float more = (ape != nullptr ? ape : gate)[column];
    return __fadd_rn(gate[column], ape != nullptr ? more : 0.f);
  }
};

// A token of an earlier call is in the state, where its gate includes ape already. Both sources
// give the same float.
__device__ TokenRow token_row(const Inputs& in, const Sequence& sequence, int position) {
  const StateLayout& layout = in.layout;
  if (position >= sequence.start) {
    const int64_t token = sequence.first_token + position - sequence.start;
    const int64_t phase = position % layout.ratio;
    return {in.kv + token * in.kv_stride, in.gate + token * in.gate_stride,
            in.ape + phase * in.ape_stride};
  }
  const float* kv = sequence.state + int64_t{layout.row_of(position)} * layout.columns();
  return {kv, kv + layout.plane(), nullptr};
}

// The sequence of closed block `index` of the call, and the block's number in it; -1 past the last
// one. Called by one warp.
__device__ int find_entry(const Inputs& in, int index, int* block) {
  const int lane = threadIdx.x % kWarp, ratio = in.layout.ratio;
  int before = 0;
  for (int base = 0; base < in.num_sequences; base += kWarp) {
    int first = 0, count = 0;
    if (base + lane < in.num_sequences) {
      const Sequence sequence = sequence_at(in, base + lane);
      first = sequence.start / ratio;
      count = sequence.end / ratio - first;
    }
    int end = count;
    for (int step = 1; step < kWarp; step *= 2) {
      const int other = __shfl_up_sync(~0u, end, step);
      if (lane >= step) end += other;
    }
    const unsigned past = __ballot_sync(~0u, index < before + end);
    if (past != 0) {
      const int owner = __ffs(static_cast<int>(past)) - 1;
      *block = __shfl_sync(~0u, index - before - (end - count) + first, owner);
      return base + owner;
    }
    before += __shfl_sync(~0u, end, kWarp - 1);
  }
  return -1;
}

// A warp's partial results per column. They are combined over the warps in ascending order, so the
// bits do not depend on where a chunk of tokens ends.
struct PoolShared {
  float largest[kPoolWarps][kPoolColumns];
  float sum[kPoolWarps][kPoolColumns], pooled[kPoolWarps][kPoolColumns];
  int owner, block;
};

// This warp's tokens of one entry: visit(i, row, column) for each of the lane's columns.
template <class Visit>
__device__ void for_each_token(const Inputs& in, const Sequence& sequence, int block,
                               int first_column, const Visit& visit) {
  const StateLayout& layout = in.layout;
  const int own = block * layout.ratio, end = own + layout.ratio;
  int begin = (layout.overlap ? own - layout.ratio : own) + threadIdx.x / kWarp;
  while (begin < 0) begin += kPoolWarps;  // block -1 does not exist
#pragma unroll 2
  for (int position = begin; position < end; position += kPoolWarps) {
    const TokenRow row = token_row(in, sequence, position);
    // Half of the columns belong to the next block's entry, half to this block's
    // (docs/spec/dsv4.md 5.3).
    const int half = layout.overlap && position >= own ? layout.width : 0;
#pragma unroll
    for (int i = 0; i < kLaneColumns; ++i) {
      // Lanes past the width repeat the last column; their results are not used.
      visit(i, row, half + min(first_column + i * kWarp, layout.width - 1));
    }
  }
}

// largest, sum and pooled value of one entry for kPoolColumns columns; in the result, each thread
// has one column.
__device__ float pool_entry(const Inputs& in, const Sequence& sequence, PoolShared& shared) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int first_column = static_cast<int>(blockIdx.y) * kPoolColumns + lane;
  float largest[kLaneColumns], sum[kLaneColumns] = {}, pooled[kLaneColumns] = {};
  for (float& value : largest) value = -INFINITY;
  const auto raise = [&](int i, const TokenRow& row, int column) {
    largest[i] = fmaxf(largest[i], row.logit(column));
  };
  for_each_token(in, sequence, shared.block, first_column, raise);
  for (int i = 0; i < kLaneColumns; ++i) shared.largest[warp][i * kWarp + lane] = largest[i];
  __syncthreads();
  for (int i = 0; i < kLaneColumns; ++i) {
    for (int w = 0; w < kPoolWarps; ++w) {
      largest[i] = fmaxf(largest[i], shared.largest[w][i * kWarp + lane]);
    }
  }
  const auto add = [&](int i, const TokenRow& row, int column) {
    const float weight = expf(row.logit(column) - largest[i]);
    sum[i] += weight;
    pooled[i] = fmaf(weight, row.kv[column], pooled[i]);
  };
  for_each_token(in, sequence, shared.block, first_column, add);
  for (int i = 0; i < kLaneColumns; ++i) {
    shared.sum[warp][i * kWarp + lane] = sum[i];
    shared.pooled[warp][i * kWarp + lane] = pooled[i];
  }
  __syncthreads();
  if (threadIdx.x >= kPoolColumns) return 0.f;
  float all = 0.f, value = 0.f;
  for (int w = 0; w < kPoolWarps; ++w) {
    all += shared.sum[w][threadIdx.x];
    value += shared.pooled[w][threadIdx.x];
  }
  return value / all;
}

// CTA (i, j): output row i, columns from j * kPoolColumns on.
template <class Out>
__global__ void __launch_bounds__(kPoolThreads)
    pool_kernel(Inputs in, Out* out, int64_t out_stride) {
  ptx::pdl_start();
  __shared__ PoolShared shared;
  if (threadIdx.x < kWarp) {
    int block = 0;
    const int found = find_entry(in, static_cast<int>(blockIdx.x), &block);
    if (threadIdx.x == 0) shared.owner = found, shared.block = block;
  }
  __syncthreads();
  float value = 0.f;
  if (shared.owner >= 0) value = pool_entry(in, sequence_at(in, shared.owner), shared);
  const int column = static_cast<int>(blockIdx.y * kPoolColumns + threadIdx.x);
  if (threadIdx.x < kPoolColumns && column < in.layout.width) {
    out[blockIdx.x * out_stride + column] = from_float<Out>(value);
  }
}

__device__ void keep(const Inputs& in, const Sequence& sequence, const TokenRow& token, int row,
                     int column) {
  float* kv = sequence.state + int64_t{row} * in.layout.columns() + column;
  kv[0] = token.kv[column];
  kv[in.layout.plane()] = token.logit(column);
}

// CTA (i, j, k): sequence i, columns from j * kStateThreads on, rows from k * kStateRows on of its
// ring.
__global__ void state_kernel(Inputs in) {
  ptx::pdl_start();
  const StateLayout& layout = in.layout;
  const Sequence sequence = sequence_at(in, blockIdx.x);
  const int column = static_cast<int>(blockIdx.y * kStateThreads + threadIdx.x);
  if (column >= layout.columns() || sequence.start == sequence.end) return;
  const int rows = layout.rows(), first = static_cast<int>(blockIdx.z) * kStateRows;
  const int last = sequence.end - 1, last_row = layout.row_of(last);
  for (int row = first; row < min(first + kStateRows, rows); ++row) {
    // The newest token of this row.
    const int newest = last - (last_row >= row ? last_row - row : last_row - row + rows);
    if (newest < sequence.start) continue;
    keep(in, sequence, token_row(in, sequence, newest), row, column);
  }
}

Inputs inputs_of(const CompressorArgs& args) {
  return {.layout = args.layout,
          .kv = args.kv.as<float>(),
          .gate = args.gate.as<float>(),
          .ape = args.ape.as<float>(),
          .kv_stride = args.kv.row_stride(),
          .gate_stride = args.gate.row_stride(),
          .ape_stride = args.ape.row_stride(),
          .cu_tokens = args.cu_tokens.as<int32_t>(),
          .start = args.start.as<int32_t>(),
          .slots = args.state_slots.as<int32_t>(),
          .num_sequences = static_cast<int>(args.start.numel()),
          .state = args.state.as<float>(),
          .state_stride = args.state.row_stride()};
}

}  // namespace

void compressor_cuda(const Context& context, const CompressorArgs& args) {
  const Inputs in = inputs_of(args);
  with_float_type(args.out.dtype, [&](auto out) {
    using Out = decltype(out);
    launch(*context.device, "compressor", pool_kernel<Out>,
           {.grid = args.out.dim(0),
            .block = kPoolThreads,
            .grid_y = ceil_div(args.layout.width, kPoolColumns),
            .pdl = true},
           in, args.out.as<Out>(), args.out.row_stride());
  });
  launch(*context.device, "compressor state", state_kernel,
         {.grid = in.num_sequences,
          .block = kStateThreads,
          .grid_y = ceil_div(args.layout.columns(), kStateThreads),
          .grid_z = ceil_div(args.layout.rows(), kStateRows),
          .pdl = true},
         in);
}

}  // namespace dsv4
