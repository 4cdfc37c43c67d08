// The consumers of a CTA: one warpgroup that multiplies, adds up over the cluster and stores.

#pragma once

#include <type_traits>

#include "dsv4/ops/gemm/sm90/small_m/config.cuh"
#include "dsv4/ops/gemm/sm90/small_m/exchange.cuh"
#include "dsv4/ops/gemm/weights/fp8_block.cuh"
#include "dsv4/ops/gemm/weights/kbit_planes.cuh"
#include "dsv4/ops/gemm/weights/plain.cuh"

namespace dsv4::gemm {

// The product of a tile in one rank, for weights that wgmma reads from shared memory, or as f16
// that they are converted to: FP8 blocks and bf16. Products of a slab start at zero and are added
// in f32, with the scales of its columns.
template <class C, class P>
class OperandProduct {
 public:
  __device__ OperandProduct(const P& params, const Memory<C>& memory, const Share& share)
      : params_(params), memory_(memory), share_(share), thread_(static_cast<int>(threadIdx.x)) {}

  // Requests the scales of a tile that is multiplied later.
  __device__ void request_scales(const Tile& tile) {
    if (const int lane = thread_ % kWarp; lane < share_.slabs)
      scale_ = block_scale(params_.matrix[tile.matrix], tile.row, share_.first_slab + lane);
  }
  __device__ void prepare_ring() {}

  // request_next(): requests the scales of the next tile.
  template <class RequestNext>
  __device__ void multiply(const Tile&, sm90::RingCursor& ring, float (&acc)[C::kSums],
                           const RequestNext& request_next) {
    const float scales = C::kScaledX ? scale_.value() : 1;
#pragma unroll
    for (float& sum : acc) sum = 0;
    for (int slab = 0; slab < share_.slabs; ++slab) {
      const float scale = __shfl_sync(~0u, scales, slab);
      // The shuffle shows the compiler that all lanes have the same descriptors.
      const uint32_t x = __shfl_sync(~0u, x_address(slab, ring.stage), 0);
      memory_.full(ring.stage).wait(ring.phase);
      float part[C::kTokens / 2];
      const uint32_t weights = memory_.slab(ring.stage);
      if constexpr (C::kFormat == Format::kFp8Bf16) {
        multiply_converted<C::kTokens>(part, weights, x, thread_);
      } else {
        using T = std::conditional_t<C::kFormat == Format::kFp8, __nv_fp8_e4m3, bf16>;
        multiply_shared<T, C::kTokens>(part, weights, x);
      }
      memory_.empty(ring.stage).arrive();
      ring.next(params_.split.stages);
      add(part, scale, slab, acc);
      if (slab == 0) request_next();  // not sooner: the first slab waits for nothing else
    }
  }

 private:
  __device__ uint32_t x_address(int slab, int stage) const {
    return C::kStreamsX ? memory_.x_of_slab(stage) : ptx::smem_address(memory_.x(slab));
  }
  __device__ void add(const float (&part)[C::kTokens / 2], float scale, int slab,
                      float (&acc)[C::kSums]) {
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
        acc[4 * n + i] = fmaf(part[4 * n + i], factor.x, acc[4 * n + i]);
        acc[4 * n + i + 1] = fmaf(part[4 * n + i + 1], factor.y, acc[4 * n + i + 1]);
      }
    }
  }

  const P& params_;
  const Memory<C>& memory_;
  const Share& share_;
  const int thread_;
  PendingScale scale_;  // FP8: lane i has the scale of slab i
};

// The product of a tile in one rank, for bit planes: four columns of the product for each token,
// one a block of 32 columns, which are added at the end.
template <class C, class P>
class PlaneProduct {
 public:
  __device__ PlaneProduct(const P& params, const Memory<C>& memory, const Share& share)
      : params_(params), memory_(memory), share_(share), thread_(static_cast<int>(threadIdx.x)) {}

  __device__ void request_scales(const Tile& tile) { scales_.request(params_, share_, tile, 0); }
  // Half of the decoding of what is in the ring, before the wait for the previous kernel. A proxy
  // fence follows.
  __device__ void prepare_ring() {
    const int slabs = share_.slabs * (share_.end_tile - share_.first_tile);
    ordered_ = order_slabs<C>(min(params_.split.stages, slabs), thread_, [&](int stage) {
      memory_.full(stage).wait(0);
      return memory_.planes(stage);
    });
  }

  template <class RequestNext>
  __device__ void multiply(const Tile& tile, sm90::RingCursor& ring, float (&acc)[C::kSums],
                           const RequestNext& request_next) {
    float sums[C::kTokens / 2][4] = {};
    for (int slab = 0; slab < share_.slabs; ++slab) {
      if (slab % PlaneScales::kSlabs == 0)
        advance_scales(tile, slab + PlaneScales::kSlabs, request_next);
      memory_.full(ring.stage).wait(ring.phase);
      const int group = slab * C::kGroups;
      add_slab<C, C::kGroups>(memory_.planes(ring.stage), slab, ptx::smem_address(memory_.x(group)),
                              memory_.x_scale() + group * C::kTokens, scales_, sums, thread_,
                              ordered_-- > 0, [&] {
                                memory_.empty(ring.stage).arrive();
                                ring.next(params_.split.stages);
                              });
    }
    add_blocks<C::kTokens>(sums, acc);
#pragma unroll
    for (float& sum : acc) sum *= params_.matrix[tile.matrix].factor;
  }

 private:
  // Scales up to `slab` become those in use; the next ones are of this tile or of the one after it.
  template <class RequestNext>
  __device__ void advance_scales(const Tile& tile, int slab, const RequestNext& request_next) {
    scales_.advance();
    if (slab < share_.slabs) return scales_.request(params_, share_, tile, slab);
    request_next();
  }

  const P& params_;
  const Memory<C>& memory_;
  const Share& share_;
  const int thread_;
  PlaneScales scales_;
  int ordered_ = 0;  // slabs that are ordered, of those to come
};

// What differs between stored formats. A further format is another class with these functions, and
// a line here.
template <class C, class P>
using WeightProduct = std::conditional_t<(C::kBits > 0), PlaneProduct<C, P>, OperandProduct<C, P>>;

template <class C, class P>
class Consumer {
 public:
  __device__ Consumer(const P& params, const Memory<C>& memory, const Share& share, int tokens)
      : params_(params),
        memory_(memory),
        share_(share),
        token_pairs_((tokens + 1) / 2),
        thread_(static_cast<int>(threadIdx.x)),
        product_(params, memory, share) {}

  // Requests the scales of the weights of the next tile, if there is one. They come from memory:
  // the caller requests the first before the wait for the previous kernel, multiply() the others a
  // tile ahead.
  __device__ void request_scales() {
    const int index = share_.first_tile + tiles_++;
    if (!C::kScaledX || index >= share_.end_tile) return;
    product_.request_scales(locate_tile(params_, share_, index));
  }
  // Before the wait for the previous kernel, which is followed by a proxy fence.
  __device__ void prepare_ring() { product_.prepare_ring(); }
  // acc_ = the share of this rank in the product of a tile. Tiles come in order.
  __device__ void multiply(const Tile& tile) {
    product_.multiply(tile, ring_, acc_, [&] { request_scales(); });
  }

  // Sends the sums of the tile to their owners.
  __device__ void send() {
    send_sums(memory_, params_.split, share_, acc_, token_pairs_, sent_++, thread_);
  }
  // Waits for the next tile in the order of send(). own_token_pairs(), token_pair_of() and
  // sum() are what this rank then has of it.
  __device__ void receive() { wait_for_sums(memory_, params_.split, received_++); }
  // The sums of the tile `back` tiles ago have been read, and ranks may send another one there.
  __device__ void free_exchange(int back) {
    gemm::free_exchange(memory_, params_.split, received_ - 1 - back, thread_);
  }
  // Token pairs that this rank owns, of those that exist.
  __device__ int own_token_pairs() const {
    return Layout::token_pairs_of_rank(2 * (token_pairs_ - share_.rank), params_.split.rank_bits);
  }
  __device__ int token_pair_of(int own) const {
    return (own << params_.split.rank_bits) + share_.rank;
  }
  // A row of the token pair `own` in the tile `back` tiles ago, 0 or 1.
  __device__ float2 sum(int back, int own, int row) const {
    return add_ranks(memory_, params_.split, received_ - 1 - back, own, row);
  }

 private:
  const P& params_;
  const Memory<C>& memory_;
  const Share& share_;
  const int token_pairs_, thread_;
  sm90::RingCursor ring_;
  int sent_ = 0, received_ = 0;
  float acc_[C::kSums];
  WeightProduct<C, P> product_;
  int tiles_ = 0;  // whose scales have been requested
};

}  // namespace dsv4::gemm
