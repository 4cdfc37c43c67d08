// The producer of a CTA: one thread that copies slabs of weights into the ring, and activations
// that no consumer converts: with each slab those of its columns, which the first tile leaves in
// shared memory for the others, or which every tile copies anew (streams_x()).
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

  // Fills the ring: before the wait for the previous kernel, which writes no weights. copies_x:
  // whether activations come from here. Without them the loops have nothing to ask for each slab,
  // which took 1 % of a step of one token.
  __device__ void fill(bool copies_x) {
    copies_x_ = copies_x;
    copies_x ? fill_ring<true>() : fill_ring<false>();
    if (copies_x) ptx::prefetch_tensormap(&params_.x);
  }
  // The activations of what fill() copied, after the wait.
  __device__ void copy_x(int first_token) {
    first_token_ = first_token;
    const int slabs = C::kStreamsX ? filled_ : min(filled_, share_.slabs);
    for (int i = 0; i < slabs; ++i) copy_columns(i % share_.slabs, i);
  }
  // The rest of the slabs, each when its stage is free.
  __device__ void stream() { copies_x_ ? stream_slabs<true>() : stream_slabs<false>(); }

 private:
  template <bool kCopiesX>
  __device__ void fill_ring() {
    for (int i = 0; i < params_.split.stages && more(); ++i) copy_slab<kCopiesX>(), ++filled_;
  }
  template <bool kCopiesX>
  __device__ void stream_slabs() {
    while (more()) {
      memory_.empty(ring_.stage).wait(ring_.phase ^ 1);
      if (kCopiesX && with_x()) copy_columns(slab_, ring_.stage);
      copy_slab<kCopiesX>();
    }
  }
  __device__ bool more() const { return index_ < share_.end_tile; }
  // Whether the activations of the present slab come with it, where they come from here.
  __device__ bool with_x() const { return C::kStreamsX || index_ == share_.first_tile; }

  // The activations of a slab's columns, which count at the slab's barrier.
  __device__ void copy_columns(int slab, int stage) {
    constexpr int kColumns = slab_columns(C::kFormat) / C::kXBoxes;
    const uint32_t to =
        C::kStreamsX ? memory_.x_of_slab(stage) : ptx::smem_address(memory_.x(slab));
    const int column =
        share_.group * params_.k + (share_.first_slab + slab) * slab_columns(C::kFormat);
#pragma unroll
    for (int i = 0; i < C::kXBoxes; ++i)
      ptx::cp_async_bulk_tensor_2d(to + i * C::kTokens * kSlabBytes, &params_.x,
                                   memory_.full(stage), column + i * kColumns, first_token_);
  }
  template <bool kCopiesX>
  __device__ void copy_slab() {
    ptx::Mbarrier& full = memory_.full(ring_.stage);
    full.expect_tx(slab_bytes(C::kFormat) + (kCopiesX && with_x() ? C::kXBytes : 0));
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
  int slab_ = 0, filled_ = 0, first_token_ = 0;
  bool copies_x_ = false;
  sm90::RingCursor ring_;
};

}  // namespace dsv4::gemm
