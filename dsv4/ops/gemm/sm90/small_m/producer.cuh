// The producer of a CTA: one thread that copies slabs of weights into the ring, and activations.
//
// Weights are read once a step, with an evict-first policy: a layer reads four times what L2 holds,
// and without the policy its instructions would be fetched from memory again in every layer.

#pragma once

#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/tensor_copy.cuh"
#include "dsv4/ops/gemm/sm90/small_m/config.cuh"

namespace dsv4::gemm {

template <class C, class P>
class Producer {
 public:
  __device__ Producer(const P& params, const Memory<C>& memory, const Share& share)
      : params_(params),
        memory_(memory),
        share_(share),
        index_(share.first_tile),
        tile_(locate_tile(params, share, share.first_tile)) {}

  // Fills the ring: before the wait for the previous kernel, which writes no weights.
  __device__ void fill(bool copies_x) {
    for (int i = 0; i < params_.split.stages && more(); ++i) copy_slab();
    if (copies_x) ptx::prefetch_tensormap(&params_.x);
  }
  // Activations, after the wait.
  __device__ void copy_x(int first_token) {
    ptx::Mbarrier& full = memory_.x_full();
    full.expect_tx(share_.slabs * C::kXBytes);
    constexpr int kColumns = slab_columns(C::kFormat) / C::kXBoxes;
    int column = share_.group * params_.k + share_.first_slab * C::kXBoxes * kColumns;
    for (int i = 0; i < share_.slabs * C::kXBoxes; ++i, column += kColumns) {
      ptx::cp_async_bulk_tensor_2d(ptx::smem_address(memory_.x(0)) + i * C::kTokens * kSlabBytes,
                                   &params_.x, full, column, first_token);
    }
    full.arrive();
  }
  // The rest of the slabs, each when its stage is free.
  __device__ void stream() {
    while (more()) {
      memory_.empty(ring_.stage).wait(ring_.phase ^ 1);
      copy_slab();
    }
  }

 private:
  __device__ bool more() const { return index_ < share_.end_tile; }

  __device__ void copy_slab() {
    ptx::Mbarrier& full = memory_.full(ring_.stage);
    full.expect_tx(slab_bytes(C::kFormat));
    ptx::cp_async_bulk_tensor_2d_evict_first(
        memory_.slab(ring_.stage), &params_.matrix[tile_.matrix].weight, full,
        (share_.first_slab + slab_) * C::kBoxColumns, tile_.row);
    full.arrive();
    ring_.next(params_.split.stages);
    if (++slab_ < share_.slabs) return;
    slab_ = 0;
    if (++index_ < share_.end_tile) tile_ = locate_tile(params_, share_, index_);
  }

  const P& params_;
  const Memory<C>& memory_;
  const Share& share_;
  int index_;
  Tile tile_;
  int slab_ = 0;
  sm90::RingCursor ring_;
};

}  // namespace dsv4::gemm
