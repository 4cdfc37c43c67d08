// Two kernels: entries read the states and pool, then the states are rewritten. A thread owns a
// column and walks over rows of tokens, so nothing is shared between threads.
//
// Which sequence an output row belongs to is in device memory: each block finds its own by a prefix
// sum over the sequences' closed blocks.

#include "dsv4/device/launch.cuh"
#include "dsv4/device/math.cuh"
#include "dsv4/ops/compressor/compressor_cuda.h"

namespace dsv4 {
namespace {

constexpr int kThreads = 128;  // columns of a block
constexpr int kStateRows = 8;  // rows of a state that a block of the second kernel rewrites

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
  int64_t first_token, start, end;  // positions [start, end) are input rows first_token ...
  float* state;
};

__device__ Sequence sequence_at(const Inputs& in, int i) {
  const int64_t first = in.cu_tokens[i], count = in.cu_tokens[i + 1] - first;
  return {first, in.start[i], in.start[i] + count,
          count > 0 ? in.state + in.slots[i] * in.state_stride : nullptr};
}

// One column of one token: the value, and the gate with ape.
struct Token {
  float kv, gate;
};

// A token before this call is in the open block or, with overlap, in the block before it; its gate
// has ape already. Both places give the same float.
__device__ Token load_token(const Inputs& in, const Sequence& sequence, int64_t position,
                            int64_t column) {
  const StateLayout& layout = in.layout;
  if (position >= sequence.start) {
    const int64_t token = sequence.first_token + position - sequence.start;
    const int64_t phase = position % layout.ratio;
    return {in.kv[token * in.kv_stride + column],
            __fadd_rn(in.gate[token * in.gate_stride + column],
                      in.ape[phase * in.ape_stride + column])};
  }
  const int64_t open_begin = sequence.start / layout.ratio * layout.ratio;
  const int row = layout.row_of(position + layout.ratio);  // position may be -ratio .. -1
  const int from = position >= open_begin ? row : row - layout.ratio;
  const float* kv = sequence.state + int64_t{from} * layout.columns() + column;
  return {kv[0], kv[layout.plane()]};
}

// The sequence in which closed block `index` of the call lies, and the block's number there; -1
// past the last one. Called by one warp.
__device__ int find_entry(const Inputs& in, int64_t index, int64_t* block) {
  const int lane = threadIdx.x % kWarp, ratio = in.layout.ratio;
  int64_t before = 0;
  for (int base = 0; base < in.num_sequences; base += kWarp) {
    int64_t first = 0, count = 0;
    if (base + lane < in.num_sequences) {
      const Sequence sequence = sequence_at(in, base + lane);
      first = sequence.start / ratio;
      count = sequence.end / ratio - first;
    }
    int64_t end = count;
    for (int step = 1; step < kWarp; step *= 2) {
      const int64_t other = __shfl_up_sync(~0u, end, step);
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

// Block (i, j): output row i, columns j * kThreads ...
template <class Out>
__global__ void pool_kernel(Inputs in, Out* out, int64_t out_stride) {
  __shared__ int64_t block_number;
  __shared__ int owner;
  if (threadIdx.x < kWarp) {
    int64_t block = 0;
    const int found = find_entry(in, blockIdx.x, &block);
    if (threadIdx.x == 0) owner = found, block_number = block;
  }
  __syncthreads();
  const StateLayout& layout = in.layout;
  const int64_t column = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (column >= layout.width) return;
  float pooled = 0.f;
  if (owner >= 0) {
    const Sequence sequence = sequence_at(in, owner);
    const int64_t own = block_number * layout.ratio, end = own + layout.ratio;
    const int64_t begin = layout.overlap() ? own - layout.ratio : own;
    // Half of the columns speak to the next block, half to their own (spec 5.3).
    const auto load = [&](int64_t position) {
      const bool second = layout.overlap() && position >= own;
      return load_token(in, sequence, position, column + (second ? layout.width : 0));
    };
    float largest = -INFINITY, sum = 0.f;
    for (int64_t p = begin; p < end; ++p) largest = fmaxf(largest, load(p).gate);
    for (int64_t p = begin; p < end; ++p) {
      const Token token = load(p);
      const float weight = expf(token.gate - largest);
      sum += weight;
      pooled = fmaf(weight, token.kv, pooled);
    }
    pooled /= sum;
  }
  out[blockIdx.x * out_stride + column] = from_float<Out>(pooled);
}

__device__ void keep(const Inputs& in, const Sequence& sequence, const Token& token, int row,
                     int64_t column) {
  float* kv = sequence.state + int64_t{row} * in.layout.columns() + column;
  kv[0] = token.kv;
  kv[in.layout.plane()] = token.gate;
}

// Block (i, j, k): sequence i, columns j * kThreads ..., rows of a block of tokens k * kStateRows
// ... As if each token had been written in turn and each closed block copied over the previous one.
// The previous block goes first: it may come from the row that the new token overwrites.
__global__ void state_kernel(Inputs in) {
  const StateLayout& layout = in.layout;
  const Sequence sequence = sequence_at(in, blockIdx.x);
  const int64_t column = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (column >= layout.columns() || sequence.start == sequence.end) return;
  const int64_t ratio = layout.ratio, closed = sequence.end / ratio;
  const bool closes = closed > sequence.start / ratio;
  const int64_t first = int64_t{blockIdx.z} * kStateRows;
  for (int64_t phase = first; phase < min(first + kStateRows, ratio); ++phase) {
    if (layout.overlap() && closes) {
      const Token token = load_token(in, sequence, (closed - 1) * ratio + phase, column);
      keep(in, sequence, token, static_cast<int>(phase), column);
    }
    // The newest token of this phase.
    const int64_t newest = sequence.end - 1 - (sequence.end - 1 - phase + ratio) % ratio;
    if (newest < sequence.start) continue;
    keep(in, sequence, load_token(in, sequence, newest, column), layout.row_of(newest), column);
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
            .block = kThreads,
            .grid_y = ceil_div(args.layout.width, kThreads)},
           in, args.out.as<Out>(), args.out.row_stride());
  });
  launch(*context.device, "compressor state", state_kernel,
         {.grid = in.num_sequences,
          .block = kThreads,
          .grid_y = ceil_div(args.layout.columns(), kThreads),
          .grid_z = ceil_div(args.layout.ratio, kStateRows)},
         in);
}

}  // namespace dsv4
