// What a launch of append.h computes, by clusters of CTAs of at least kThreads threads.
//
// Problem    a cluster of 4 CTAs has one of
//              a sequence's entries: state, pooling of the blocks that close, norm, RoPE, S8; a CTA
//                has 128 of the 512 columns
//              the index keys of 4 sequences, one each: the same, then Hadamard and S4
//              the window rows of 4 tokens, one each: norm, RoPE, S8
// Bound      latency: lists -> state -> two passes of the softmax -> sum of squares -> row. With
//            HCA an entry reads 512 KB of state, 128 KB a CTA
// Order      that of the small ops, so the bits are theirs. A CTA reads and writes its own columns
//            of the state only, and writes after all its blocks are pooled: a block may pool tokens
//            whose rows of the ring belong to newer tokens afterwards
// Exchange   the sums of squares of 8 columns each, to all CTAs of the cluster (st.async)
// Barriers   received[n % 2] | 1 and 256 bytes | the CTA itself, the shares of its nth entry |
//            all threads. Two: a CTA may send for the next entry while another reads
// Before the wait  barriers

#pragma once

#include "dsv4/device/ptx/cluster.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/shared_memory.cuh"
#include "dsv4/ops/model/attention_in/bf16_step.cuh"
#include "dsv4/ops/model/attention_in/sm90_few/append_params.cuh"
#include "dsv4/ops/parts/quant/lanes.cuh"
#include "dsv4/ops/parts/rope/rotation.cuh"

namespace dsv4::attention_in_kernel::sm90_few {

using compressor_kernel::Inputs;
using compressor_kernel::Sequence;

__device__ inline int warp_of_thread() {
  return static_cast<int>(threadIdx.x) / kWarp;
}
__device__ inline int lane_of_thread() {
  return static_cast<int>(threadIdx.x) % kWarp;
}

__device__ inline float square_sum(const float* x) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kRun; ++i) sum = __fmaf_rn(x[i], x[i], sum);
  return sum;
}
__device__ inline float root_of(float squares, int width, float eps) {
  return 1.f / sqrtf(squares / static_cast<float>(width) + eps);
}

// The rotations of a row, by one warp.
__device__ inline void store_rotations(const AppendParams& p, int position, Shared& shared) {
  const int lane = lane_of_thread();
  shared.rotation[lane] = rotation_of(static_cast<float>(position), p.freqs[lane], false);
}

// Column `column` of `width`, whose neighbor in the pair is the next or previous lane's.
__device__ inline float rotated(float x, int column, int width, const Shared& shared) {
  const float other = __shfl_xor_sync(~0u, x, 1);
  if (column < width - kRotated) return x;
  const bool second = column % 2 != 0;
  const float2 turned = rotate(second ? float2{other, x} : float2{x, other},
                               shared.rotation[(column - (width - kRotated)) / 2]);
  return bf16_step(second ? turned.y : turned.x);
}

// Number of blocks that close in the sequences before sequence i; the same in all lanes.
__device__ inline int closed_before(const Inputs& in, int i) {
  int count = 0;
  for (int s = lane_of_thread(); s < i; s += kWarp) {
    const Sequence sequence = sequence_at(in, s);
    count += sequence.end / in.layout.ratio - sequence.start / in.layout.ratio;
  }
  for (int step = kWarp / 2; step > 0; step /= 2) count += __shfl_xor_sync(~0u, count, step);
  return count;
}

// The newest tokens of the sequence into the columns first .. first + kColumns of the state, of
// both halves with overlap.
__device__ inline void keep_tokens(const Inputs& in, const Sequence& sequence, int first) {
  const StateLayout& layout = in.layout;
  const int each = layout.overlap ? 2 * kColumns : kColumns;
  const int begin = max(sequence.start, sequence.end - layout.rows());
  for (int i = threadIdx.x; i < (sequence.end - begin) * each; i += kThreads) {
    const int position = begin + i / each, c = i % each;
    const int column = c / kColumns * layout.width + first + c % kColumns;
    keep(in, sequence, token_row(in, sequence, position), layout.row_of(position), column);
  }
}

// Calls close(n, block, row, position) for every block of the sequence that closes and has a row,
// all threads; then updates the state's columns from `first` on.
template <class Close>
__device__ void append_sequence(const AppendParams& p, const Inputs& in, int index, int first,
                                const Close& close) {
  const Sequence sequence = sequence_at(in, index);
  if (sequence.start == sequence.end) return;
  const int first_block = sequence.start / in.layout.ratio;
  const int end_block = sequence.end / in.layout.ratio;
  if (first_block < end_block) {
    int entry = closed_before(in, index), n = 0;
    for (int block = first_block; block < end_block && entry < p.num_entries; ++block, ++entry) {
      const int row = p.entry_rows[entry];
      if (row >= 0) close(n++, sequence, block, row, p.entry_positions[entry]);
    }
  }
  keep_tokens(in, sequence, first);  // every warp has read: pool_entry() ends after a barrier
}

__device__ inline void append_entries(const AppendParams& p, Shared& shared, int index, int rank) {
  const int first = rank * kColumns;
  append_sequence(
      p, p.entry_state, index, first,
      [&](int n, const Sequence& sequence, int block, int row, int position) {
        if (rank == kCtas - 1 && warp_of_thread() == 0) store_rotations(p, position, shared);
        const float pooled = bf16_step(
            compressor_kernel::pool_entry(p.entry_state, sequence, block, first, shared.pool));
        const int thread = static_cast<int>(threadIdx.x), turn = n % 2;
        if (thread < kColumns) shared.pooled[thread] = pooled;
        if (thread == 0) {
          shared.received[turn].expect_tx(kShares * sizeof(uint32_t));
          shared.received[turn].arrive();
        }
        compressor_kernel::sync_pool();
        // Warp r sends to CTA r.
        if (warp_of_thread() < kCtas && lane_of_thread() < kColumns / kRun) {
          const int share = lane_of_thread();
          ptx::st_async(
              &shared.squares[turn][first / kRun + share], static_cast<uint32_t>(warp_of_thread()),
              __float_as_uint(square_sum(shared.pooled + share * kRun)), shared.received[turn]);
        }
        shared.received[turn].wait_acquire_cluster(static_cast<uint32_t>(n / 2 % 2));
        if (thread < kColumns) {
          const uint32_t* squares = shared.squares[turn];
          const float low = warp_sum(__uint_as_float(squares[lane_of_thread()])),
                      high = warp_sum(__uint_as_float(squares[lane_of_thread() + kWarp]));
          const float root = root_of(low + high, kWidth, p.norm_eps);
          const int column = first + thread;
          const float x = bf16_step(pooled * root * p.entry_norm.at(column));
          shared.row[column] = rotated(x, column, kWidth, shared);
        }
        compressor_kernel::sync_pool();
        pack_kv_columns(p.entries, row, shared.row, {first, kColumns},
                        compressor_kernel::kPoolWarps);
      });
}

// The Hadamard transform of shared.row, rounded, by one warp: lane i has columns 4 i .. 4 i + 3.
__device__ inline void transform_row(Shared& shared, float factor) {
  constexpr int kPer = kKeyWidth / kWarp;
  const int lane = lane_of_thread();
  float v[kPer];
#pragma unroll
  for (int j = 0; j < kPer; ++j) v[j] = shared.row[lane * kPer + j];
  hadamard_in_lanes(v, kWarp, lane);
#pragma unroll
  for (int j = 0; j < kPer; ++j) shared.row[lane * kPer + j] = bf16_step(v[j] * factor);
}

__device__ inline void append_keys(const AppendParams& p, Shared& shared, int index) {
  append_sequence(
      p, p.key_state, index, 0,
      [&](int, const Sequence& sequence, int block, int row, int position) {
        if (warp_of_thread() == 0) store_rotations(p, position, shared);
        const float pooled =
            bf16_step(compressor_kernel::pool_entry(p.key_state, sequence, block, 0, shared.pool));
        const int thread = static_cast<int>(threadIdx.x), lane = lane_of_thread();
        if (thread < kColumns) shared.pooled[thread] = pooled;
        compressor_kernel::sync_pool();
        if (thread < kColumns) {
          const bool has = lane < kKeyWidth / kRun;
          const float squares =
              warp_sum(has ? square_sum(shared.pooled + lane % (kKeyWidth / kRun) * kRun) : 0.f);
          const float root = root_of(squares, kKeyWidth, p.norm_eps);
          const float x = bf16_step(pooled * root * p.key_norm.at(thread));
          shared.row[thread] = rotated(x, thread, kKeyWidth, shared);
        }
        compressor_kernel::sync_pool();
        if (warp_of_thread() == 0) transform_row(shared, p.key_factor);
        compressor_kernel::sync_pool();
        pack_index_row(p.keys, row, shared.row, compressor_kernel::kPoolWarps);
        compressor_kernel::sync_pool();  // the next block writes there
      });
}

// A thread of the first two warps has 8 columns.
__device__ inline void append_window(const AppendParams& p, Shared& shared, int token) {
  const int row = p.window_rows[token], warp = warp_of_thread();
  if (row < 0) return;
  const int column = static_cast<int>(threadIdx.x) * kRun;
  float x[kRun];
  if (warp < 2) {
    load<kRun>(p.kv + token * p.kv_stride + column, x);
    const float sum = warp_sum(square_sum(x));
    if (lane_of_thread() == 0) shared.warp_sums[warp] = sum;
  } else if (warp == 2) {
    store_rotations(p, p.positions[token], shared);
  }
  compressor_kernel::sync_pool();
  if (warp < 2) {
    const float root = root_of(shared.warp_sums[0] + shared.warp_sums[1], kWidth, p.norm_eps);
#pragma unroll
    for (int i = 0; i < kRun; ++i) x[i] = bf16_step(x[i] * root * p.kv_norm.at(column + i));
#pragma unroll
    for (int i = 0; i < kRun; i += 2) {
      const int pair = (column + i - (kWidth - kRotated)) / 2;
      float2 turned{x[i], x[i + 1]};
      if (column >= kWidth - kRotated) turned = rotate(turned, shared.rotation[pair]);
      shared.row[column + i] = bf16_step(turned.x),
                          shared.row[column + i + 1] = bf16_step(turned.y);
    }
  }
  compressor_kernel::sync_pool();
  pack_kv_columns(p.window, row, shared.row, {0, kWidth}, compressor_kernel::kPoolWarps);
}

// Before the wait. All threads of the CTA, which may be more than kThreads.
__device__ inline void start_append(Shared& shared) {
  if (threadIdx.x == 0) {
    for (ptx::Mbarrier& barrier : shared.received) barrier.init(1);
    ptx::fence_mbarrier_init();
  }
  ptx::cluster_arrive_relaxed();
  ptx::cluster_wait();  // all barriers can count
}

// The work of cluster `cluster` of num_clusters(). The first kThreads threads of each of its CTAs.
__device__ inline void append_cluster(const AppendParams& p, Shared& shared, int cluster) {
  const auto rank = static_cast<int>(ptx::cluster_ctarank());
  if (cluster < p.entry_clusters) return append_entries(p, shared, cluster, rank);
  cluster -= p.entry_clusters;
  if (cluster < p.key_clusters) {
    const int sequence = cluster * kCtas + rank;
    if (sequence < p.num_sequences) append_keys(p, shared, sequence);
    return;
  }
  const int token = (cluster - p.key_clusters) * kCtas + rank;
  if (token < p.num_tokens) append_window(p, shared, token);
}

}  // namespace dsv4::attention_in_kernel::sm90_few
