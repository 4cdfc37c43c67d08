// A consumer warpgroup: 64 rows of every item. Fragments as in ptx/wgmma.cuh: a thread has rows g
// and g + 8 of its warp's 16 (r = 0, 1), two columns of every eight.

#pragma once

#include "dsv4/device/ptx/cluster.cuh"
#include "dsv4/device/ptx/convert.cuh"
#include "dsv4/device/ptx/fence.cuh"
#include "dsv4/device/ptx/named_barrier.cuh"
#include "dsv4/device/ptx/smem_desc.cuh"
#include "dsv4/device/ptx/wgmma.cuh"
#include "dsv4/ops/xattn/scores/sm90/config.cuh"

namespace dsv4::xattn_scores_kernel::sm90 {

template <class C>
class Consumer {
 public:
  __device__ Consumer(const Params& params, Shared& shared, int cta)
      : params_(params),
        shared_(shared),
        // The shuffle shows the compiler that all threads of a warp agree.
        group_(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / kGroup - 1, 0)),
        thread_(static_cast<int>(threadIdx.x) % kGroup),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        row_(group_ * 64 + thread_ / kWarp * 16 + lane_ / 4),
        q_desc_(ptx::make_smem_desc_128B(ptx::smem_address(shared.q) + group_ * 64 * kSliceRow)),
        k_desc_(ptx::make_smem_desc_128B(ptx::smem_address(shared.k))),
        partials_(params.partials + static_cast<int64_t>(cta) * kRows * params.partial_stride),
        maxima_(params.maxima + static_cast<int64_t>(cta) * kRows * params.column_tiles) {}

  __device__ void run(int cluster, int clusters, int rank) {
    int step = 0;
    Item<C> item;
    for (int round = 0; Item<C>::get(params_, round, cluster, clusters, rank, item); ++round) {
      if (item.num_tiles == 0) continue;
      for (int r = 0; r < 2; ++r) largest_[r] = -INFINITY, sum_[r] = 0.f;
      const bool whole = groups_are_whole(item);
      for (int tile = 0; tile < item.num_tiles; ++tile) {
        multiply(item, tile, whole, step);
        if (cut(item, tile)) mask(item, tile);
        add_tile(tile);
      }
      finish(item);
    }
  }

 private:
  // One lane of every warp frees a stage in all CTAs of the cluster.
  __device__ void release(int step) {
    __syncwarp();
    ptx::Mbarrier& barrier = shared_.free[stage(step)];
    if (params_.ctas == 1) {
      if (lane_ == 0) barrier.arrive();
    } else {
      if (lane_ < params_.ctas) barrier.arrive_relaxed_cluster(lane_);
    }
  }

  // scores_ = the product of one tile.
  __device__ void multiply(const Item<C>& item, int tile, bool whole, int& step) {
    for (int token = 0, i = 0; token < params_.stride; ++token) {
      for (int slice = 0; slice < params_.slices; ++slice, ++i, ++step) {
        const int s = stage(step);
        shared_.full[s].wait(phase(step));
        if (!whole) clear_missing(item, tile, token, s);
        const uint64_t q = ptx::advance_desc(q_desc_, s * kRows * kSliceRow);
        const uint64_t k = ptx::advance_desc(k_desc_, s * kColumns * kSliceRow);
        ptx::wgmma_fence();
#pragma unroll
        for (int c = 0; c < kSliceRow / 32; ++c) {  // 32 bytes of K per instruction
          ptx::Wgmma<typename C::T, kColumns>::run(scores_, ptx::advance_desc(q, c * 32),
                                                   ptx::advance_desc(k, c * 32), i + c > 0);
        }
        ptx::wgmma_commit_group();
        if (i > 0) {
          ptx::wgmma_wait_group<1>();
          release(step - 1);
        }
      }
    }
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_fence_operand(scores_);
    release(step - 1);
  }

  // Whether the sequence fills all of its groups.
  __device__ bool groups_are_whole(const Item<C>& item) const {
    const PrefillSequence& seq = item.sequence;
    const int past = seq.first_position + seq.queries;
    return seq.first_position % params_.stride == 0 && past % params_.stride == 0 &&
           seq.keys % params_.stride == 0;
  }

  // Tokens that a partly filled group of this sequence lacks count as zeros, whatever was copied.
  __device__ void clear_missing(const Item<C>& item, int tile, int token, int s) {
    const PrefillSequence& seq = item.sequence;
    const int q_token = params_.stride - 1 - token, past = seq.first_position + seq.queries;
    int rows[2] = {-1, -1};  // of q, the first and the last group
    const int first = item.groups.first_row, last = item.groups.end_row - 1;
    if (first * params_.stride + q_token < seq.first_position) rows[0] = first - item.first;
    if (last * params_.stride + q_token >= past) rows[1] = last - item.first;
    const int column = item.groups.columns - 1 - tile * kColumns;
    const bool clear_k = (item.groups.columns - 1) * params_.stride + token >= seq.keys &&
                         0 <= column && column < kColumns;
    const auto mine = [&](int row) { return row >= group_ * 64 && row < group_ * 64 + 64; };
    if (!mine(rows[0]) && !mine(rows[1]) && !clear_k) return;
    if (thread_ < kSliceRow / 16) {
      const int at = thread_ * 16;
      for (const int row : rows) {
        if (mine(row)) {
          ptx::st_shared_v4_zero(ptx::smem_address(shared_.q[s]) + row * kSliceRow + at);
        }
      }
      if (clear_k && group_ == 0) {
        ptx::st_shared_v4_zero(ptx::smem_address(shared_.k[s]) + column * kSliceRow + at);
      }
      ptx::fence_proxy_async();
    }
    // Both warpgroups read k; they agree on clear_k.
    if (clear_k) {
      ptx::barrier_sync(kKeysCleared, kConsumers * kGroup);
    } else {
      ptx::barrier_sync(kOwnGroup + group_, kGroup);
    }
  }

  // Whether a row of this thread's warpgroup does not see all columns of the tile.
  __device__ bool cut(const Item<C>& item, int tile) const {
    return item.groups.visible(item.first + group_ * 64) < (tile + 1) * kColumns;
  }
  __device__ void mask(const Item<C>& item, int tile) {
    int limit[2];
    for (int r = 0; r < 2; ++r) {
      limit[r] = item.groups.visible(item.first + row_ + 8 * r) - tile * kColumns - 2 * (lane_ % 4);
    }
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) {
      if (8 * (i / 4) + i % 2 >= limit[i / 2 % 2]) scores_[i] = -INFINITY;
    }
  }

  // Exponentials of the tile, added by key block, to the workspace.
  __device__ void add_tile(int tile) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float now = largest_[r];
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        now = fmaxf(now, fmaxf(scores_[4 * n + 2 * r], scores_[4 * n + 2 * r + 1]));
      }
      now = fmaxf(now, __shfl_xor_sync(~0u, now, 1));
      now = fmaxf(now, __shfl_xor_sync(~0u, now, 2));
      const float base = now == -INFINITY ? 0.f : now * params_.scale;
      sum_[r] *= ptx::ex2_approx_ftz(fmaf(largest_[r], params_.scale, -base));
      largest_[r] = now;
      if (lane_ % 4 == 0) maxima_[tile * kRows + row_ + 8 * r] = base;
      float* to = partials_ + static_cast<int64_t>(row_ + 8 * r) * params_.partial_stride +
                  tile * C::kTileBlocks;
      if constexpr (C::kPerBlock >= 8) {
        add_large_blocks(r, base, to);
      } else {
        add_small_blocks(r, base, to);
      }
    }
  }

  // A block is eight columns or more: the four lanes of a row have a part of each.
  __device__ void add_large_blocks(int r, float base, float* to) {
#pragma unroll
    for (int b = 0; b < C::kTileBlocks; b += 8) {
      float blocks[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) blocks[i] = add_block(b + i, r, base);
      *reinterpret_cast<float2*>(to + b + 2 * (lane_ % 4)) = exchange(blocks, r);
    }
  }

  // A block is two columns, which one lane has, or four, which two lanes share: of two times eight
  // columns the even lane completes the first and the odd lane the second.
  __device__ void add_small_blocks(int r, float base, float* to) {
    constexpr int kEights = C::kPerBlock == 2 ? 1 : 2;  // columns / 8 of a step
    const int block = C::kPerBlock == 2 ? lane_ % 4 : lane_ % 2 * 2 + lane_ % 4 / 2;
#pragma unroll
    for (int n = 0; n < kColumns / 8; n += kEights) {
      float sum = add_two(n, r, base);
      if constexpr (kEights == 2) {
        const float next = add_two(n + 1, r, base);
        const bool odd = lane_ % 2 != 0;
        sum = (odd ? next : sum) + __shfl_xor_sync(~0u, odd ? sum : next, 1);
      }
      to[4 * (n / kEights) + block] = sum;
      sum_[r] += sum;
    }
  }

  // The exponentials of this thread's two columns of eight.
  __device__ float add_two(int eight, int r, float base) const {
    const float* two = scores_ + 4 * eight + 2 * r;
    return ptx::ex2_approx_ftz(fmaf(two[0], params_.scale, -base)) +
           ptx::ex2_approx_ftz(fmaf(two[1], params_.scale, -base));
  }

  // This thread's part of a key block.
  __device__ float add_block(int block, int r, float base) const {
    constexpr int kEights = C::kPerBlock / 8;
    float sum = 0.f;
#pragma unroll
    for (int n = 0; n < kEights; ++n) sum += add_two(block * kEights + n, r, base);
    return sum;
  }

  // Adds eight blocks over the four lanes of a row; lane j gets the blocks 2 j and 2 j + 1.
  __device__ float2 exchange(const float (&blocks)[8], int r) {
    const bool high = (lane_ & 2) != 0, odd = (lane_ & 1) != 0;
    float four[4], two[2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      four[i] = (high ? blocks[4 + i] : blocks[i]) +
                __shfl_xor_sync(~0u, high ? blocks[i] : blocks[4 + i], 2);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      two[i] = (odd ? four[2 + i] : four[i]) + __shfl_xor_sync(~0u, odd ? four[i] : four[2 + i], 1);
    }
    sum_[r] += two[0] + two[1];
    return {two[0], two[1]};
  }

  // Scales the partial sums with their rows' maxima and sums, and adds the rows of query blocks.
  __device__ void finish(const Item<C>& item) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = sum_[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const int row = row_ + 8 * r, group = item.first + row;
      const bool exists = group >= item.groups.first_row && group < item.groups.end_row;
      if (lane_ % 4 == 0) {
        shared_.rows[row] = {largest_[r] == -INFINITY ? 0.f : largest_[r] * params_.scale,
                             exists && sum > 0.f ? 1.f / sum : 0.f};
      }
    }
    ptx::barrier_sync(kOwnGroup + group_, kGroup);
    constexpr int kQueryBlocks = 64 / C::kPerBlock;
    for (int n = 0; n < kQueryBlocks; ++n) {
      const int first_row = group_ * 64 + n * C::kPerBlock;
      const int block_row = item.block_row + first_row / C::kPerBlock;
      if (block_row >= item.sequence.num_q_blocks(params_.block)) break;
      const int block = item.sequence.first_block(params_.block) + block_row;
      const int blocks = item.sequence.visible_blocks(params_.block, block);
      float* to = params_.sums + ((static_cast<int64_t>(item.index) * params_.heads + item.head) *
                                      params_.q_blocks +
                                  block_row) *
                                     params_.k_blocks;
      for (int j = thread_; j < blocks; j += kGroup) to[j] = add_rows(first_row, j);
    }
    ptx::barrier_sync(kOwnGroup + group_, kGroup);  // rows and workspace may be overwritten
  }

  __device__ float add_rows(int first_row, int block) const {
    const float* maxima = maxima_ + block / C::kTileBlocks * kRows + first_row;
    const float* partials =
        partials_ + static_cast<int64_t>(first_row) * params_.partial_stride + block;
    float all = 0.f;
#pragma unroll 8
    for (int i = 0; i < C::kPerBlock; ++i) {
      const float2 row = shared_.rows[first_row + i];
      const float partial = partials[static_cast<int64_t>(i) * params_.partial_stride];
      const float scale = ptx::ex2_approx_ftz(maxima[i] - row.x) * row.y;
      all += row.y > 0.f ? partial * scale : 0.f;  // rows without a query may hold NaN
    }
    return all;
  }

  const Params& params_;
  Shared& shared_;
  const int group_, thread_, lane_, row_;  // row_: of this thread, r = 0
  const uint64_t q_desc_, k_desc_;
  float *const partials_, *const maxima_;  // of this CTA
  float scores_[kColumns / 2];
  float largest_[2], sum_[2];  // so far; sum_ of this thread's blocks
};

}  // namespace dsv4::xattn_scores_kernel::sm90
