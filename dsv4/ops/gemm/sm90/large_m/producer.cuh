// The producers of a CTA. One thread copies slabs: its own rows of the weights, and of the
// activations half of the tokens, which go to both CTAs of the cluster. With scales every thread
// has a token: it multiplies the scale of the slab's weights with that of the token's columns.

#pragma once

#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/tensor_copy.cuh"
#include "dsv4/ops/gemm/sm90/large_m/config.cuh"
#include "dsv4/ops/gemm/weights/fp8_block.cuh"

namespace dsv4::gemm::large_m {

template <class C>
class Producer {
 public:
  __device__ Producer(const Params& p, Shared<C>& shared)
      : p_(p),
        shared_(shared),
        thread_(static_cast<int>(threadIdx.x) - kConsumers),
        rank_(static_cast<int>(blockIdx.x) % kCtas) {}

  __device__ void run() {
    ptx::griddepcontrol_wait();
    if (!C::kScaled && thread_ > 0) return;
    visit_tiles(p_, [&](const Tile& tile) { copy_tile(tile); });
  }

 private:
  __device__ void copy_tile(const Tile& tile) {
    Factor next = request(tile, 0);
#pragma unroll 1
    for (int slab = 0; slab < p_.slabs; ++slab) {
      const Factor factor = next;
      if (slab + 1 < p_.slabs) next = request(tile, slab + 1);
      ptx::Mbarrier& full = shared_.full[at_.stage];
      shared_.empty[at_.stage].wait_acquire_cluster(at_.phase ^ 1);
      if (thread_ == 0) copy_slab(tile, slab, full);
      if constexpr (C::kScaled)
        shared_.factor[at_.stage][thread_] = factor.weights.value() * factor.x.value();
      full.arrive();
      at_.next(C::kStages);
    }
  }

  __device__ void copy_slab(const Tile& tile, int slab, ptx::Mbarrier& full) const {
    constexpr int kShare = kTokens / kCtas, kBoxColumns = C::kColumns / C::kXBoxes;
    full.expect_tx(C::kStageBytes);
    const Matrix& matrix = p_.matrix[tile.matrix];
    const uint32_t weights = ptx::smem_address(shared_.stage[at_.stage]);
    const uint32_t x = weights + C::kWeightBytes + rank_ * kShare * kSlabBytes;
    ptx::cp_async_bulk_tensor_2d(weights, &matrix.weight, full, slab * C::kColumns,
                                 tile.group * matrix.rows + tile.row);
#pragma unroll
    for (int i = 0; i < C::kXBoxes; ++i)
      ptx::cp_async_bulk_tensor_2d_multicast(
          x + i * C::kXBoxBytes, &p_.x, full, (1 << kCtas) - 1,
          tile.group * p_.k + slab * C::kColumns + i * kBoxColumns, tile.token + rank_ * kShare);
  }

  // The scales of a slab on their way from memory. Rows and tokens past the end repeat the last.
  struct Factor {
    PendingScale weights, x;
  };
  __device__ Factor request(const Tile& tile, int slab) const {
    if constexpr (!C::kScaled) return {};
    const Matrix& matrix = p_.matrix[tile.matrix];
    const int64_t block =
        (tile.group * matrix.rows + min(tile.row, matrix.rows - 1)) / kScaleColumns;
    const int64_t token = min(tile.token + thread_, p_.tokens - 1);
    return {{matrix.scale, matrix.scale_is_f32, block * matrix.scale_stride + slab},
            {p_.x_scale, false, token * p_.x_scale_stride + tile.group * p_.slabs + slab}};
  }

  const Params& p_;
  Shared<C>& shared_;
  const int thread_, rank_;
  sm90::RingCursor at_;
};

}  // namespace dsv4::gemm::large_m
