// The consumers of a CTA: one warpgroup that multiplies, adds up over the cluster and stores.

#pragma once

#include <type_traits>

#include "dsv4/formats/ue8m0.h"
#include "dsv4/ops/few_gemm/config.cuh"
#include "dsv4/ops/few_gemm/exchange.cuh"
#include "dsv4/ops/few_gemm/products.cuh"

namespace dsv4::few_gemm {

template <class C, class P>
class Consumer {
 public:
  __device__ Consumer(const P& params, const Memory<C>& memory, const Share& share, int tokens)
      : params_(params),
        memory_(memory),
        share_(share),
        pairs_((tokens + 1) / 2),
        thread_(static_cast<int>(threadIdx.x)) {}

  // acc_ = the share of this rank in the product of a tile.
  __device__ void multiply(const Tile& tile) {
    const float scales = load_scales(tile);
#pragma unroll
    for (float& sum : acc_) sum = 0;
    for (int slab = 0; slab < share_.slabs; ++slab) {
      const float scale = __shfl_sync(~0u, scales, slab);
      memory_.full(stage_).wait(phase_);
      float part[C::kTokens / 2];
      const uint32_t x = ptx::smem_address(memory_.x(slab));
      const uint32_t weights = memory_.slab(stage_);
      if constexpr (C::kFormat == Format::kFp8Bf16) {
        multiply_converted<C::kTokens>(part, weights, x, thread_);
      } else {
        using T = std::conditional_t<C::kFormat == Format::kFp8, __nv_fp8_e4m3, bf16>;
        multiply_shared<T, C::kTokens>(part, weights, x);
      }
      memory_.empty(stage_).arrive();
      if (++stage_ == params_.split.stages) stage_ = 0, phase_ ^= 1;
      add(part, scale, slab);
    }
  }

  // Sends the sums of the tile to their owners.
  __device__ void send() {
    send_sums(memory_, params_.split, share_, acc_, pairs_, sent_++, thread_);
  }
  // Waits for the next tile in the order of send(). own_pairs(), pair_of() and sum() are what this
  // rank then has of it.
  __device__ void receive() {
    wait_for_sums(memory_, params_.split, received_++);
  }
  // The sums of the tile `back` tiles ago have been read, and ranks may send another one there.
  __device__ void free_exchange(int back) {
    few_gemm::free_exchange(memory_, params_.split, received_ - 1 - back, thread_);
  }
  // Pairs of tokens that this rank owns, of those that exist.
  __device__ int own_pairs() const {
    return Layout::pairs_of_rank(2 * (pairs_ - share_.rank), params_.split.rank_bits);
  }
  __device__ int pair_of(int own) const {
    return (own << params_.split.rank_bits) + share_.rank;
  }
  // A row of the pair `own` in the tile `back` tiles ago, 0 or 1.
  __device__ float2 sum(int back, int own, int row) const {
    return add_ranks(memory_, params_.split, received_ - 1 - back, own, row);
  }

 private:
  // Lane i has the scale of slab i of this rank.
  __device__ float load_scales(const Tile& tile) const {
    if constexpr (C::kFormat == Format::kBf16) return 1;
    const Matrix& matrix = params_.matrix[tile.matrix];
    const int lane = thread_ % kWarp;
    if (lane >= share_.slabs) return 0;
    const int64_t i = tile.row / kScaleColumns * matrix.scale_stride + share_.first_slab + lane;
    return matrix.scale_is_f32 ? static_cast<const float*>(matrix.scale)[i]
                               : ue8m0_to_f32(static_cast<const uint8_t*>(matrix.scale)[i]);
  }

  __device__ void add(const float (&part)[C::kTokens / 2], float scale, int slab) {
#pragma unroll
    for (int n = 0; n < C::kTokens / 8; ++n) {
      float2 factor{scale, scale};
      if constexpr (C::kScaledX) {
        const float2 x = *reinterpret_cast<const float2*>(memory_.x_scale() + slab * C::kTokens +
                                                          8 * n + 2 * (thread_ % 4));
        factor.x *= x.x, factor.y *= x.y;
      }
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        acc_[4 * n + i] = fmaf(part[4 * n + i], factor.x, acc_[4 * n + i]);
        acc_[4 * n + i + 1] = fmaf(part[4 * n + i + 1], factor.y, acc_[4 * n + i + 1]);
      }
    }
  }

  const P& params_;
  const Memory<C>& memory_;
  const Share& share_;
  const int pairs_, thread_;
  int stage_ = 0, phase_ = 0, sent_ = 0, received_ = 0;
  float acc_[C::kTokens / 2];
};

}  // namespace dsv4::few_gemm
