// The consumers of a CTA: one warpgroup that multiplies, adds up over the cluster and stores.

#pragma once

#include <type_traits>

#include "dsv4/ops/gemm/sm90/small_m/config.cuh"
#include "dsv4/ops/gemm/sm90/small_m/exchange.cuh"
#include "dsv4/ops/gemm/weights/kbit_planes.cuh"
#include "dsv4/ops/gemm/weights/fp8_block.cuh"
#include "dsv4/ops/gemm/weights/plain.cuh"

namespace dsv4::gemm {

template <class C, class P>
class Consumer {
 public:
  __device__ Consumer(const P& params, const Memory<C>& memory, const Share& share, int tokens)
      : params_(params),
        memory_(memory),
        share_(share),
        pairs_((tokens + 1) / 2),
        thread_(static_cast<int>(threadIdx.x)) {}

  // Of the weights of the next tile, if there is one. They come from memory: the caller requests
  // the first before the wait for the previous kernel, multiply() the others a tile ahead.
  __device__ void request_scales() {
    const int index = share_.first_tile + tiles_++;
    if (!C::kScaledX || index >= share_.end_tile) return;
    const Tile tile = locate_tile(params_, share_, index);
    if constexpr (C::kBits > 0) {
      plane_scales_.request(params_, share_, tile, 0);
    } else if (const int lane = thread_ % kWarp; lane < share_.slabs) {
      block_scale_ = block_scale(params_.matrix[tile.matrix], tile.row, share_.first_slab + lane);
    }
  }
  // Half of the decoding of what is in the ring, before the wait for the previous kernel, which is
  // followed by a proxy fence.
  __device__ void order_planes() {
    const int slabs = share_.slabs * (share_.end_tile - share_.first_tile);
    ordered_ = order_slabs<C>(min(params_.split.stages, slabs), thread_, [&](int stage) {
      memory_.full(stage).wait(0);
      return memory_.planes(stage);
    });
  }
  // acc_ = the share of this rank in the product of a tile. Tiles come in order.
  __device__ void multiply(const Tile& tile) {
    if constexpr (C::kBits > 0) {
      multiply_kbit(tile);
    } else {
      multiply_codes();
    }
  }

  // Sends the sums of the tile to their owners.
  __device__ void send() {
    send_sums(memory_, params_.split, share_, acc_, pairs_, sent_++, thread_);
  }
  // Waits for the next tile in the order of send(). own_pairs(), pair_of() and sum() are what this
  // rank then has of it.
  __device__ void receive() { wait_for_sums(memory_, params_.split, received_++); }
  // The sums of the tile `back` tiles ago have been read, and ranks may send another one there.
  __device__ void free_exchange(int back) {
    gemm::free_exchange(memory_, params_.split, received_ - 1 - back, thread_);
  }
  // Pairs of tokens that this rank owns, of those that exist.
  __device__ int own_pairs() const {
    return Layout::pairs_of_rank(2 * (pairs_ - share_.rank), params_.split.rank_bits);
  }
  __device__ int pair_of(int own) const { return (own << params_.split.rank_bits) + share_.rank; }
  // A row of the pair `own` in the tile `back` tiles ago, 0 or 1.
  __device__ float2 sum(int back, int own, int row) const {
    return add_ranks(memory_, params_.split, received_ - 1 - back, own, row);
  }

 private:
  __device__ void multiply_codes() {
    const float scales = C::kScaledX ? block_scale_.value() : 1;
#pragma unroll
    for (float& sum : acc_) sum = 0;
    for (int slab = 0; slab < share_.slabs; ++slab) {
      const float scale = __shfl_sync(~0u, scales, slab);
      // The shuffle shows the compiler that all lanes have the same descriptors.
      const uint32_t x = __shfl_sync(~0u, ptx::smem_address(memory_.x(slab)), 0);
      memory_.full(stage_).wait(phase_);
      float part[C::kTokens / 2];
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
      if (slab == 0) request_scales();  // not sooner: the first slab waits for nothing else
    }
  }

  __device__ void multiply_kbit(const Tile& tile) {
    float sums[C::kTokens / 2][4] = {};
    for (int slab = 0; slab < share_.slabs; ++slab) {
      if (slab % PlaneScales::kSlabs == 0) advance_scales(tile, slab + PlaneScales::kSlabs);
      memory_.full(stage_).wait(phase_);
      const int group = slab * C::kGroups;
      add_slab<C, C::kGroups>(memory_.planes(stage_), slab, ptx::smem_address(memory_.x(group)),
                              memory_.x_scale() + group * C::kTokens, plane_scales_, sums, thread_,
                              ordered_-- > 0, [&] {
                                memory_.empty(stage_).arrive();
                                if (++stage_ == params_.split.stages) stage_ = 0, phase_ ^= 1;
                              });
    }
    add_blocks<C::kTokens>(sums, acc_);
#pragma unroll
    for (float& sum : acc_) sum *= params_.matrix[tile.matrix].factor;
  }
  // Scales up to `slab` become those in use; the next ones are of this tile or of the one after it.
  __device__ void advance_scales(const Tile& tile, int slab) {
    plane_scales_.advance();
    if (slab < share_.slabs) return plane_scales_.request(params_, share_, tile, slab);
    request_scales();
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
  float acc_[C::kSums];
  PendingScale block_scale_;  // of FP8 weights: lane i has that of slab i
  PlaneScales plane_scales_;  // of bit planes
  int ordered_ = 0;           // slabs that are ordered, of those to come
  int tiles_ = 0;             // whose scales have been requested
};

}  // namespace dsv4::gemm
