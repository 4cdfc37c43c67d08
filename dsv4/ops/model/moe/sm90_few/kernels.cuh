// Two kernels around the routed experts (moe.h), both of gemm/sm90:
//
//   inputs   logits = x gate^T; h = bf16(swiglu(bf16(x w1^T), bf16(x w3^T))) of the shared expert
//   down     y = bf16(Q8(h) w2^T) of the shared expert; in other CTAs the router of logits
//
// The router is a chain of short steps and w2 is read at the speed of memory, so they take no
// longer together than the router alone.

#pragma once

#include "dsv4/ops/gemm/epilogue/swiglu.cuh"
#include "dsv4/ops/gemm/x/boundary.cuh"
#include "dsv4/ops/model/moe/sm90_few/call.cuh"

namespace dsv4::moe_kernel::sm90_few {

// After a tile of w1 and one of w3.
struct StoreHidden {
  static constexpr int kTiles = 2;
  const GateUp& params;

  template <class Consumer>
  __device__ void operator()(const Consumer& consumer, const gemm::Tile& tile, int first_token,
                             int tokens) const {
    for (int i = static_cast<int>(threadIdx.x); i < consumer.own_token_pairs() * gemm::kTileRows;
         i += gemm::kConsumers) {
      const int own = i / gemm::kTileRows, row = i % gemm::kTileRows;
      const float2 gate = consumer.sum(1, own, row), up = consumer.sum(0, own, row);
      const int token = 2 * consumer.token_pair_of(own);
      if (row >= tile.count) continue;
      store(tile.row + row, first_token + token, gate.x, up.x);
      if (token + 1 < tokens) store(tile.row + row, first_token + token + 1, gate.y, up.y);
    }
  }

 private:
  __device__ static float rounded(float x) { return to_float(from_float<bf16>(x)); }
  __device__ void store(int row, int64_t token, float gate, float up) const {
    params.hidden[token * params.hidden_stride + row] =
        from_float<bf16>(swiglu(rounded(gate), rounded(up), 1, params.limit));
  }
};

// C: Config of w1 and w3.
template <class C>
auto inputs_kernel() {
  return gemm::two_formats_kernel<C, InputParams, StoreHidden, gemm::StoreTile<InputParams::Bf16>>;
}

// inputs_kernel with the boundary before the block. A template, so that only its callers compile
// it.
template <class C, class P = InputParams>
auto inputs_with_boundary_kernel() {
  return gemm::boundary_kernel<C, P, StoreHidden, gemm::StoreTile<typename P::Bf16>>;
}

// One token for each warp at a time. Experts of a lane: 8 or 12.
__device__ inline void route(const DownParams& params, int tile_tokens) {
  const router_kernel::Routing& r = params.router;
  const int first = static_cast<int>(blockIdx.y) * tile_tokens;
  const int end = min(first + tile_tokens, static_cast<int>(r.t));
  const int cta = static_cast<int>(blockIdx.x) - params.product_ctas;
  constexpr int kWarps = gemm::kThreads / kWarp;
  for (int token = first + cta * kWarps + static_cast<int>(threadIdx.x) / kWarp; token < end;
       token += params.routing_ctas * kWarps) {
    if (r.table != nullptr) {
      r.table_is_i64 ? router_kernel::route_hash<int64_t>(r, token)
                     : router_kernel::route_hash<int32_t>(r, token);
    } else if (r.experts <= 8 * kWarp) {
      router_kernel::route_learned<8>(r, token);
    } else {
      router_kernel::route_learned<gemm::experts::kMaxExperts / kWarp>(r, token);
    }
  }
}

// C: Config of w2.
template <class C>
__global__ void __launch_bounds__(gemm::kThreads, C::kCtasOfSm)
    down_kernel(const __grid_constant__ DownParams params) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  using P = gemm::Params<1>;
  ptx::griddepcontrol_launch_dependents();
  const int cta = static_cast<int>(blockIdx.x), bits = params.down.split.rank_bits;
  if (cta < params.product_ctas) {
    gemm::multiply_share<C>(params.down, cta >> bits, cta & ((1 << bits) - 1),
                            gemm::LoadX<C, P>{params.down}, gemm::StoreTile<P>{params.down});
  } else {
    ptx::griddepcontrol_wait();
    route(params, C::kTokens);
  }
#else
  __trap();  // compiled for another architecture; the reject function refuses those
#endif
}

}  // namespace dsv4::moe_kernel::sm90_few
