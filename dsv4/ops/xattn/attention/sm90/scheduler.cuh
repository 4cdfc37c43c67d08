// The scheduler warp: takes items from the counter, describes them as work tiles and publishes
// them, up to kWorkSlots ahead of their use. What it reads has the latency of several dependent
// loads, which would otherwise stall the loader between two work tiles.

#pragma once

#include "dsv4/ops/xattn/attention/sm90/block_list.cuh"
#include "dsv4/ops/xattn/attention/sm90/config.cuh"

namespace dsv4::block_sparse_attention_kernel::sm90 {

template <class C>
class Scheduler {
 public:
  __device__ Scheduler(const Params& params, Shared<C>& shared)
      : params_(params), shared_(shared), lane_(static_cast<int>(threadIdx.x) % kWarp) {}

  __device__ void run() {
    for (int use = 0;; ++use) {
      WorkTile work{.num_tiles = -1};
      const bool any = next_item(work);
      publish(work, use);
      if (!any) return;
    }
  }

 private:
  // False: none is left.
  __device__ bool next_item(WorkTile& work) {
    for (;;) {
      int item = 0;
      if (lane_ == 0) item = atomicAdd(params_.next_item, 1);
      item = __shfl_sync(~0u, item, 0);
      if (item >= params_.num_items) return false;
      // Sequence, key head, query block from the last one down, head of the group.
      const int in_group = item % params_.group;
      item /= params_.group;
      const int row = params_.q_blocks - 1 - item % params_.q_blocks,
                segment = item / params_.q_blocks;
      const int kv_heads = params_.heads / params_.group;
      work.index = segment / kv_heads;
      work.kv_head = segment % kv_heads;
      work.head = work.kv_head * params_.group + in_group;
      const PrefillSequence s =
          prefill_sequence(params_.cu_q, params_.cu_kv, work.index, params_.causal);
      if (row >= s.num_q_blocks(kBlock)) continue;
      describe(s, row, work);
      return true;
    }
  }

  __device__ void describe(const PrefillSequence& s, int row, WorkTile& work) const {
    const int block = s.first_block(kBlock) + row, visible = s.visible_blocks(kBlock, block);
    const bool dense = params_.counts == nullptr;
    const int64_t at =
        (static_cast<int64_t>(work.index) * params_.heads + work.head) * params_.q_blocks + row;
    work.list = at * params_.slots;
    ListReader list(dense ? nullptr : params_.indices + work.list,
                    dense ? visible : params_.counts[at], lane_);
    list.trim(visible);
    work.list_size = list.size();
    work.first_kv = s.first_kv;
    work.first = block * kBlock;
    work.begin = max(work.first, s.first_position);
    work.end = min(work.first + kBlock, s.first_position + s.queries);
    work.row_shift = s.first_q - s.first_position;
    work.keys = s.keys;
    work.num_tiles = list.size() * C::kTilesPerBlock;
    work.last_tile = work.masked_tiles = 0;
    if (list.size() == 0) return;
    const int last = list[list.size() - 1];
    work.last_tile = last * kBlock + kBlock - C::kKeys;
    while (work.last_tile >= s.keys) {  // tiles of the block without any key
      work.last_tile -= C::kKeys;
      --work.num_tiles;
    }
    if (last + 1 == visible) {
      work.masked_tiles = work.num_tiles - (list.size() - 1) * C::kTilesPerBlock;
    }
  }

  __device__ void publish(const WorkTile& work, int use) {
    const int slot = stage<kWorkSlots>(use);
    shared_.work_free[slot].wait((phase<kWorkSlots>(use) + 1) % 2);
    __syncwarp();  // no lane may find the phase after that of the other lanes
    if (lane_ == 0) {
      shared_.work[slot] = work;
      shared_.work_full[slot].arrive();
    }
    __syncwarp();
  }

  const Params& params_;
  Shared<C>& shared_;
  const int lane_;
};

}  // namespace dsv4::block_sparse_attention_kernel::sm90
