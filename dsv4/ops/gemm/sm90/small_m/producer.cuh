// The producer of a CTA: one thread that copies slabs of weights into the ring, and activations:
// all of them once, or with every slab those of its columns (streams_x()).
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
    for (int i = 0; i < params_.split.stages && more(); ++i) copy_slab<false>();
    if (copies_x) ptx::prefetch_tensormap(&params_.x);
  }
  // Activations, after the wait: of all slabs, or of those that fill() copied.
  __device__ void copy_x(int first_token) {
    first_token_ = first_token;
    if constexpr (C::kStreamsX) {
      const int filled = min(params_.split.stages, share_.slabs * share_.tiles());
      for (int i = 0; i < filled; ++i)
        copy_columns(memory_.x_of_slab(i), i % share_.slabs, 1, memory_.full(i));
    } else {
      ptx::Mbarrier& full = memory_.x_full();
      full.expect_tx(share_.slabs * C::kXBytes);
      copy_columns(ptx::smem_address(memory_.x(0)), 0, share_.slabs, full);
      full.arrive();
    }
  }
  // The rest of the slabs, each when its stage is free.
  __device__ void stream() {
    while (more()) {
      memory_.empty(ring_.stage).wait(ring_.phase ^ 1);
      copy_slab<C::kStreamsX>();
    }
  }

 private:
  __device__ bool more() const { return index_ < share_.end_tile; }

  // The activations of `slabs` slabs from `slab` on.
  __device__ void copy_columns(uint32_t to, int slab, int slabs, ptx::Mbarrier& full) {
    constexpr int kColumns = slab_columns(C::kFormat) / C::kXBoxes;
    int column = share_.group * params_.k + (share_.first_slab + slab) * C::kXBoxes * kColumns;
    for (int i = 0; i < slabs * C::kXBoxes; ++i, column += kColumns)
      ptx::cp_async_bulk_tensor_2d(to + i * C::kTokens * kSlabBytes, &params_.x, full, column,
                                   first_token_);
  }
  // kWithX: with the activations of its columns, which otherwise come later, or are not streamed.
  template <bool kWithX>
  __device__ void copy_slab() {
    ptx::Mbarrier& full = memory_.full(ring_.stage);
    full.expect_tx(stage_bytes(C::kFormat, C::kTokens));
    ptx::cp_async_bulk_tensor_2d_evict_first(
        memory_.slab(ring_.stage), &params_.matrix[tile_.matrix].weight, full,
        (share_.first_slab + slab_) * C::kBoxColumns, tile_.row);
    if constexpr (kWithX) copy_columns(memory_.x_of_slab(ring_.stage), slab_, 1, full);
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
  int slab_ = 0, first_token_ = 0;
  sm90::RingCursor ring_;
};

}  // namespace dsv4::gemm
