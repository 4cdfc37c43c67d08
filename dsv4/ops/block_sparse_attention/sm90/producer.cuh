// The producer warp: fetches work tiles, reads their lists, and copies Q, K and V.

#pragma once

#include "dsv4/device/ptx/tensor_copy.cuh"
#include "dsv4/ops/block_sparse_attention/sm90/config.cuh"

namespace dsv4::block_sparse_attention_kernel::sm90 {

// The listed blocks of a work tile, from the last visible one down. The warp holds 32 of them.
class ListReader {
 public:
  // list: null for every block below `visible`.
  __device__ ListReader(const int* list, int count, int visible, int lane)
      : list_(list), lane_(lane), size_(list == nullptr ? visible : count) {
    while (list != nullptr && size_ > 0) {
      load((size_ - 1) / kWarp);
      const int here = size_ - held_ * kWarp;  // listed blocks of the 32, at most
      const unsigned seen = __ballot_sync(~0u, lane < here && blocks_ < visible);
      size_ -= here - __popc(seen);
      if (seen != 0) break;
    }
  }

  __device__ int size() const { return size_; }

  // All lanes ask for the same i.
  __device__ int operator[](int i) {
    if (list_ == nullptr) return i;
    if (i / kWarp != held_) load(i / kWarp);
    return __shfl_sync(~0u, blocks_, i % kWarp);
  }

 private:
  __device__ void load(int chunk) {
    held_ = chunk;
    const int i = chunk * kWarp + lane_;
    blocks_ = i < size_ ? list_[i] : 0;
  }

  const int* list_;
  int lane_, size_;
  int held_ = -1, blocks_ = 0;
};

template <class C>
class Producer {
 public:
  __device__ Producer(const Params& params, Shared<C>& shared)
      : params_(params), shared_(shared), lane_(static_cast<int>(threadIdx.x) % kWarp) {}

  __device__ void run() {
    int tile = 0, loads_of_q = 0;
    for (int use = 0;; ++use) {
      const bool any = next_item();
      WorkTile work{.num_tiles = -1};
      ListReader list(nullptr, 0, 0, lane_);
      if (any) {
        list = open_list();
        work = describe(list);
      }
      publish(work, use);
      if (!any) return;
      if (work.num_tiles > 0) load(list, work, tile, loads_of_q++);
    }
  }

 private:
  // False: none is left.
  __device__ bool next_item() {
    for (;;) {
      int item = 0;
      if (lane_ == 0) item = atomicAdd(params_.next_item, 1);
      item = __shfl_sync(~0u, item, 0);
      if (item >= params_.num_items) return false;
      // Sequence, key head, query block from the last one down, head of the group.
      const int in_group = item % params_.group;
      item /= params_.group;
      row_ = params_.q_blocks - 1 - item % params_.q_blocks;
      item /= params_.q_blocks;
      const int kv_heads = params_.heads / params_.group;
      kv_head_ = item % kv_heads;
      head_ = kv_head_ * params_.group + in_group;
      index_ = item / kv_heads;
      sequence_ = prefill_sequence(params_.cu_q, params_.cu_kv, index_, params_.causal);
      if (row_ < sequence_.num_q_blocks(kBlock)) return true;
    }
  }

  __device__ ListReader open_list() const {
    const int block = sequence_.first_block(kBlock) + row_;
    const int visible = sequence_.visible_blocks(kBlock, block);
    if (params_.counts == nullptr) return {nullptr, 0, visible, lane_};
    const int64_t at =
        (static_cast<int64_t>(index_) * params_.heads + head_) * params_.q_blocks + row_;
    return {params_.indices + at * params_.slots, params_.counts[at], visible, lane_};
  }

  __device__ WorkTile describe(ListReader& list) const {
    const int block = sequence_.first_block(kBlock) + row_, first = block * kBlock;
    WorkTile work{.head = head_,
                  .first = first,
                  .begin = max(first, sequence_.first_position),
                  .end = min(first + kBlock, sequence_.first_position + sequence_.queries),
                  .row_shift = sequence_.first_q - sequence_.first_position,
                  .num_tiles = list.size() * C::kTilesPerBlock,
                  .keys = sequence_.keys,
                  .last_tile = 0,
                  .masked_tiles = 0};
    if (list.size() == 0) return work;
    const int last = list[list.size() - 1];
    work.last_tile = last * kBlock + kBlock - C::kKeys;
    while (work.last_tile >= sequence_.keys) {  // tiles of the block without any key
      work.last_tile -= C::kKeys;
      --work.num_tiles;
    }
    if (last + 1 == sequence_.visible_blocks(kBlock, block)) {
      work.masked_tiles = work.num_tiles - (list.size() - 1) * C::kTilesPerBlock;
    }
    return work;
  }

  __device__ void publish(const WorkTile& work, int use) {
    shared_.work_free[use % 2].wait((use / 2 + 1) % 2);
    if (lane_ == 0) {
      shared_.work[use % 2] = work;
      shared_.work_full[use % 2].arrive();
    }
    __syncwarp();
  }

  __device__ void load(ListReader& list, const WorkTile& work, int& tile, int use) {
    int before = -1;  // first key of the tile before this one
    for (int i = work.num_tiles - 1; i >= 0; --i, ++tile) {
      const int first = list[i / C::kTilesPerBlock] * kBlock + i % C::kTilesPerBlock * C::kKeys;
      copy_keys(params_.k, shared_.k, shared_.k_full, shared_.k_free, tile, first);
      if (before < 0) {
        copy_queries(work, use);
      } else {
        copy_keys(params_.v, shared_.v, shared_.v_full, shared_.v_free, tile - 1, before);
      }
      before = first;
    }
    copy_keys(params_.v, shared_.v, shared_.v_full, shared_.v_free, tile - 1, before);
  }

  __device__ void copy_queries(const WorkTile& work, int use) {
    shared_.q_free.wait((use + 1) % 2);
    if (lane_ == 0) {
      shared_.q_full.expect_tx(C::kQBytes);
      const uint32_t to = ptx::smem_address(shared_.q);
      for (int panel = 0; panel < C::kD / kPanel; ++panel) {
        ptx::cp_async_bulk_tensor_3d(to + panel * kBlock * kPanelRow, &params_.q, shared_.q_full,
                                     panel * kPanel, work.head, work.first + work.row_shift);
      }
      shared_.q_full.arrive();
    }
    __syncwarp();
  }

  // Keys or values from position `first` on, for one tile. With pages a lane copies each; pages
  // past the last key are not touched, and what lies in their place is not used.
  template <int kBytes>
  __device__ void copy_keys(const CUtensorMap& map, unsigned char (&buffers)[C::kStages][kBytes],
                            ptx::Mbarrier (&full)[C::kStages], ptx::Mbarrier (&free)[C::kStages],
                            int tile, int first) {
    constexpr int kWidth = kBytes / C::kKeys / 2;
    const int s = stage<C>(tile);
    free[s].wait((phase<C>(tile) + 1) % 2);
    int row = sequence_.first_kv + first, page = 0, boxes = 1;
    if (params_.page_table != nullptr) {
      boxes = (min(C::kKeys, sequence_.keys - first) + params_.box_rows - 1) / params_.box_rows;
      const int position = first + lane_ * params_.box_rows;
      row = position % params_.page_size;
      if (lane_ < boxes) {
        page = params_.page_table[index_ * params_.table_stride + position / params_.page_size];
      }
    }
    if (lane_ == 0) full[s].expect_tx(boxes * params_.box_rows * kWidth * 2);
    __syncwarp();
    if (lane_ < boxes) {
      const uint32_t to = ptx::smem_address(buffers[s]) + lane_ * params_.box_rows * kPanelRow;
      for (int panel = 0; panel < kWidth / kPanel; ++panel) {
        ptx::cp_async_bulk_tensor_4d(to + panel * C::kKeys * kPanelRow, &map, full[s],
                                     panel * kPanel, kv_head_, row, page);
      }
    }
    if (lane_ == 0) full[s].arrive();
    __syncwarp();
  }

  const Params& params_;
  Shared<C>& shared_;
  const int lane_;
  // The item at hand.
  int index_ = 0, head_ = 0, kv_head_ = 0, row_ = 0;
  PrefillSequence sequence_{};
};

}  // namespace dsv4::block_sparse_attention_kernel::sm90
