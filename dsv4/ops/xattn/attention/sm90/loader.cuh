// The loader warp: copies Q, K and V of the work tiles that the scheduler publishes.

#pragma once

#include "dsv4/device/ptx/tensor_copy.cuh"
#include "dsv4/ops/xattn/attention/sm90/block_list.cuh"
#include "dsv4/ops/xattn/attention/sm90/config.cuh"

namespace dsv4::block_sparse_attention_kernel::sm90 {

template <class C>
class Loader {
 public:
  __device__ Loader(const Params& params, Shared<C>& shared)
      : params_(params), shared_(shared), lane_(static_cast<int>(threadIdx.x) % kWarp) {}

  __device__ void run() {
    int tile = 0, loads_of_q = 0;
    for (int use = 0;; ++use) {
      const int slot = stage<kWorkSlots>(use);
      shared_.work_full[slot].wait(phase<kWorkSlots>(use));
      const WorkTile work = shared_.work[slot];
      __syncwarp();
      if (lane_ == 0) shared_.work_free[slot].arrive();
      if (work.num_tiles < 0) return;
      if (work.num_tiles > 0) load(work, tile, loads_of_q++);
    }
  }

 private:
  __device__ void load(const WorkTile& work, int& tile, int use) {
    ListReader list(params_.counts == nullptr ? nullptr : params_.indices + work.list,
                    work.list_size, lane_);
    int before = -1;  // first key of the tile before this one
    for (int i = work.num_tiles - 1; i >= 0; --i, ++tile) {
      const int first = list[i / C::kTilesPerBlock] * kBlock + i % C::kTilesPerBlock * C::kKeys;
      copy_keys(params_.k, shared_.k, shared_.k_full, shared_.k_free, work, tile, first);
      if (before < 0) {
        copy_queries(work, use);
      } else {
        copy_keys(params_.v, shared_.v, shared_.v_full, shared_.v_free, work, tile - 1, before);
      }
      before = first;
    }
    copy_keys(params_.v, shared_.v, shared_.v_full, shared_.v_free, work, tile - 1, before);
  }

  __device__ void copy_queries(const WorkTile& work, int use) {
    const int s = stage<C::kQStages>(use);
    shared_.q_free[s].wait((phase<C::kQStages>(use) + 1) % 2);
    __syncwarp();
    if (lane_ == 0) {
      shared_.q_full[s].expect_tx(C::kQBytes);
      const uint32_t to = ptx::smem_address(shared_.q[s]);
      for (int panel = 0; panel < C::kD / kPanel; ++panel) {
        ptx::cp_async_bulk_tensor_3d(to + panel * kBlock * kPanelRow, &params_.q, shared_.q_full[s],
                                     panel * kPanel, work.head, work.first + work.row_shift);
      }
      shared_.q_full[s].arrive();
    }
    __syncwarp();
  }

  // Keys or values from position `first` on, for one tile. With pages a lane copies each; pages
  // past the last key are not touched, and what lies in their place is not used.
  template <int kBytes>
  __device__ void copy_keys(const CUtensorMap& map, unsigned char (&buffers)[C::kStages][kBytes],
                            ptx::Mbarrier (&full)[C::kStages], ptx::Mbarrier (&free)[C::kStages],
                            const WorkTile& work, int tile, int first) {
    constexpr int kWidth = kBytes / C::kKeys / 2;
    const int s = stage<C::kStages>(tile);
    free[s].wait((phase<C::kStages>(tile) + 1) % 2);
    int row = work.first_kv + first, page = 0, boxes = 1;
    if (params_.page_table != nullptr) {
      boxes = (min(C::kKeys, work.keys - first) + params_.box_rows - 1) / params_.box_rows;
      const int position = first + lane_ * params_.box_rows;
      row = position % params_.page_size;
      if (lane_ < boxes) {
        page = params_.page_table[work.index * params_.table_stride + position / params_.page_size];
      }
    }
    if (lane_ == 0) full[s].expect_tx(boxes * params_.box_rows * kWidth * 2);
    __syncwarp();
    if (lane_ < boxes) {
      const uint32_t to = ptx::smem_address(buffers[s]) + lane_ * params_.box_rows * kPanelRow;
      for (int panel = 0; panel < kWidth / kPanel; ++panel) {
        ptx::cp_async_bulk_tensor_4d(to + panel * C::kKeys * kPanelRow, &map, full[s],
                                     panel * kPanel, work.kv_head, row, page);
      }
    }
    if (lane_ == 0) full[s].arrive();
    __syncwarp();
  }

  const Params& params_;
  Shared<C>& shared_;
  const int lane_;
};

}  // namespace dsv4::block_sparse_attention_kernel::sm90
