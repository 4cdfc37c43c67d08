// The parts of a compressor's kernels (compressor.h): tokens of a sequence, of this call or in its
// state, pooling of an entry, and what the state keeps.

#pragma once

#include "dsv4/base/bits.h"
#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/named_barrier.cuh"
#include "dsv4/ops/parts/compressor/compressor.h"

namespace dsv4::compressor_kernel {

inline constexpr int kPoolWarps = 8, kPoolThreads = kPoolWarps * kWarp;
inline constexpr int kLaneColumns = 4, kPoolColumns = kLaneColumns * kWarp;
inline constexpr int kPoolBarrier = 3;  // named barrier of those threads: a CTA may have others

__device__ inline void sync_pool() {
  ptx::barrier_sync(kPoolBarrier, kPoolThreads);
}

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

__device__ inline Sequence sequence_at(const Inputs& in, int i) {
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
__device__ inline TokenRow token_row(const Inputs& in, const Sequence& sequence, int position) {
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

// A warp's partial results per column. They are combined over the warps in ascending order, so the
// bits do not depend on where a chunk of tokens ends.
struct PoolShared {
  float largest[kPoolWarps][kPoolColumns];
  float sum[kPoolWarps][kPoolColumns], pooled[kPoolWarps][kPoolColumns];
};

// This warp's tokens of one entry: visit(i, row, column) for each of the lane's columns
// first_column
// + 32 i.
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

// Block `block` of a sequence, kPoolColumns columns of its entry from `first` on: thread i of the
// first kPoolColumns returns column first + i. For the first kPoolThreads threads of a CTA; may be
// called again without a barrier, and every thread has read its tokens when one returns.
__device__ inline float pool_entry(const Inputs& in, const Sequence& sequence, int block, int first,
                                   PoolShared& shared) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int first_column = first + lane;
  float largest[kLaneColumns], sum[kLaneColumns] = {}, pooled[kLaneColumns] = {};
  for (float& value : largest) value = -INFINITY;
  const auto raise = [&](int i, const TokenRow& row, int column) {
    largest[i] = fmaxf(largest[i], row.logit(column));
  };
  for_each_token(in, sequence, block, first_column, raise);
  for (int i = 0; i < kLaneColumns; ++i) shared.largest[warp][i * kWarp + lane] = largest[i];
  sync_pool();
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
  for_each_token(in, sequence, block, first_column, add);
  for (int i = 0; i < kLaneColumns; ++i) {
    shared.sum[warp][i * kWarp + lane] = sum[i];
    shared.pooled[warp][i * kWarp + lane] = pooled[i];
  }
  sync_pool();
  if (threadIdx.x >= kPoolColumns) return 0.f;
  float all = 0.f, value = 0.f;
  for (int w = 0; w < kPoolWarps; ++w) {
    all += shared.sum[w][threadIdx.x];
    value += shared.pooled[w][threadIdx.x];
  }
  return value / all;
}

__device__ inline void keep(const Inputs& in, const Sequence& sequence, const TokenRow& token,
                            int row, int column) {
  float* kv = sequence.state + int64_t{row} * in.layout.columns() + column;
  kv[0] = token.kv[column];
  kv[in.layout.plane()] = token.logit(column);
}

inline Inputs inputs_of(const CompressorArgs& args) {
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

}  // namespace dsv4::compressor_kernel
