// The producer of a CTA: one thread that copies slabs of weights into the ring, and activations.

#pragma once

#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/tensor_copy.cuh"
#include "dsv4/ops/few_gemm/config.cuh"

namespace dsv4::few_gemm {

template <class C, class P>
class Producer {
 public:
  __device__ Producer(const P& params, const Memory<C>& memory, const Share& share)
      : params_(params), memory_(memory), share_(share), tile_(share.first_tile) {}

  // Fills the ring: before the wait for the previous kernel, which writes no weights.
  __device__ void fill() {
    for (int i = 0; i < params_.split.stages && more(); ++i) copy_slab();
  }
  // Activations, after the wait.
  __device__ void copy_x(int first_token) {
    ptx::Mbarrier& full = memory_.x_full();
    full.expect_tx(share_.slabs * C::kXBytes);
    constexpr int kColumns = slab_columns(C::kFormat) / C::kXBoxes;
    for (int slab = 0; slab < share_.slabs; ++slab) {
      const uint32_t to = ptx::smem_address(memory_.x(slab));
      const int column =
          share_.group * params_.k + (share_.first_slab + slab) * C::kXBoxes * kColumns;
      for (int box = 0; box < C::kXBoxes; ++box) {
        ptx::cp_async_bulk_tensor_2d(to + box * C::kTokens * kSlabBytes, &params_.x, full,
                                     column + box * kColumns, first_token);
      }
    }
    full.arrive();
  }
  // The rest of the slabs, each when its stage is free.
  __device__ void stream() {
    while (more()) {
      memory_.empty(stage_).wait(phase_ ^ 1);
      copy_slab();
    }
  }

 private:
  __device__ bool more() const { return tile_ < share_.end_tile && share_.slabs > 0; }

  __device__ void copy_slab() {
    const Tile tile = locate_tile(params_, tile_);
    ptx::Mbarrier& full = memory_.full(stage_);
    full.expect_tx(kTileRows * kSlabBytes);
    ptx::cp_async_bulk_tensor_2d(memory_.stage(stage_), &params_.matrix[tile.matrix].weight, full,
                                 (share_.first_slab + slab_) * slab_columns(C::kFormat), tile.row);
    full.arrive();
    if (++slab_ == share_.slabs) slab_ = 0, ++tile_;
    if (++stage_ == params_.split.stages) stage_ = 0, phase_ ^= 1;
  }

  const P& params_;
  const Memory<C>& memory_;
  const Share& share_;
  int tile_, slab_ = 0, stage_ = 0, phase_ = 0;
};

}  // namespace dsv4::few_gemm
