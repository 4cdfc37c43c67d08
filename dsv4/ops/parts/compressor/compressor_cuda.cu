// Two kernels: the first pools entries and reads the states, the second updates the states. In the
// first, the eight warps of a CTA share the rows of an entry and each lane has four columns; in the
// second, each thread has one column of a few rows.
//
// The sequence of an output row depends on device memory: each CTA finds it by a prefix sum over
// the numbers of closed blocks.

#include "dsv4/device/launch.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/parts/compressor/compressor.h"
#include "dsv4/ops/parts/compressor/pool.cuh"

namespace dsv4::compressor_kernel::cuda {
namespace {

using compressor_kernel::Inputs;
using compressor_kernel::kPoolColumns;
using compressor_kernel::kPoolThreads;
using compressor_kernel::PoolShared;
using compressor_kernel::Sequence;

constexpr int kStateThreads = 128;  // columns of a CTA of the second kernel
constexpr int kStateRows = 8;       // rows of a state that it updates

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

// CTA (i, j): output row i, columns from j * kPoolColumns on.
template <class Out>
__global__ void __launch_bounds__(kPoolThreads)
    pool_kernel(Inputs in, Out* out, int64_t out_stride) {
  ptx::pdl_start();
  __shared__ PoolShared shared;
  __shared__ int owner, block;
  if (threadIdx.x < kWarp) {
    int its_block = 0;
    const int found = find_entry(in, static_cast<int>(blockIdx.x), &its_block);
    if (threadIdx.x == 0) owner = found, block = its_block;
  }
  __syncthreads();
  float value = 0.f;
  const int first = static_cast<int>(blockIdx.y) * kPoolColumns;
  if (owner >= 0) value = pool_entry(in, sequence_at(in, owner), block, first, shared);
  const int column = first + static_cast<int>(threadIdx.x);
  if (threadIdx.x < kPoolColumns && column < in.layout.width) {
    out[blockIdx.x * out_stride + column] = from_float<Out>(value);
  }
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

}  // namespace

void run(const Context& context, const CompressorArgs& args) {
  const Inputs in = compressor_kernel::inputs_of(args);
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

}  // namespace dsv4::compressor_kernel::cuda
