// The producer of a CTA: one thread that copies the slices of every step.

#pragma once

#include "dsv4/device/ptx/cluster.cuh"
#include "dsv4/device/ptx/tensor_copy.cuh"
#include "dsv4/ops/xattn/scores/sm90/config.cuh"

namespace dsv4::xattn_scores_kernel::sm90 {

template <class C>
class Producer {
 public:
  __device__ Producer(const Params& params, Shared& shared, int rank)
      : params_(params), shared_(shared), rank_(rank), share_(kColumns / params.ctas) {}

  __device__ void run(int cluster, int clusters) {
    int step = 0;
    Item<C> item;
    for (int round = 0; Item<C>::get(params_, round, cluster, clusters, rank_, item); ++round) {
      for (int tile = 0; tile < item.num_tiles; ++tile) {
        for (int token = 0; token < params_.stride; ++token) {
          for (int slice = 0; slice < params_.slices; ++slice, ++step) {
            copy_step(item, tile, token, slice * C::kSlice, step);
          }
        }
      }
    }
  }

 private:
  // Token `token` of kSlice columns from `column` on: of every key group, and of every query group
  // in reverse order.
  __device__ void copy_step(const Item<C>& item, int tile, int token, int column, int step) {
    const int s = stage(step);
    shared_.free[s].wait((phase(step) + 1) % 2);
    shared_.full[s].expect_tx((kRows + kColumns) * kSliceRow);
    const PrefillSequence& seq = item.sequence;
    const int row =
        seq.first_q - seq.first_position + item.first * params_.stride + params_.stride - 1 - token;
    const int group = floor_div(row, params_.stride), in_group = row - group * params_.stride;
    ptx::cp_async_bulk_tensor_4d(ptx::smem_address(shared_.q[s]), &map_of(params_.q, in_group),
                                 shared_.full[s], item.head * params_.d + column, in_group, group,
                                 0);
    // This CTA's share of the columns, to all CTAs.
    for (int first = 0; first < share_; first += params_.box_groups) {
      const int mine = rank_ * share_ + first;
      copy_keys(item, (tile * kColumns + mine) * params_.stride, token, column,
                ptx::smem_address(shared_.k[s]) + mine * kSliceRow, shared_.full[s]);
    }
    shared_.full[s].arrive();
  }

  // The groups from `position` on.
  __device__ void copy_keys(const Item<C>& item, int position, int token, int column, uint32_t to,
                            ptx::Mbarrier& full) {
    int group = 0, page = 0;
    if (params_.page_table == nullptr) {
      const int row = item.sequence.first_kv + position + token;
      group = floor_div(row, params_.stride);
      token = row - group * params_.stride;
    } else {
      // Columns past the last key are masked: any page will do.
      if (position >= item.sequence.keys) position = 0;
      page = params_.page_table[item.index * params_.table_stride + position / params_.page_size];
      group = position % params_.page_size / params_.stride;
    }
    const CUtensorMap& map = map_of(params_.k, token);
    column += item.kv_head * params_.d;
    if (params_.ctas == 1) {
      ptx::cp_async_bulk_tensor_4d(to, &map, full, column, token, group, page);
    } else {
      const auto all = static_cast<uint16_t>((1 << params_.ctas) - 1);
      ptx::cp_async_bulk_tensor_4d_multicast(to, &map, full, all, column, token, group, page);
    }
  }

  __device__ static const CUtensorMap& map_of(const GroupMaps& maps, int token) {
    return token < maps.tail ? maps.all : maps.whole;
  }

  const Params& params_;
  Shared& shared_;
  const int rank_, share_;
};

}  // namespace dsv4::xattn_scores_kernel::sm90
