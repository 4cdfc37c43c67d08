// A problem as parameters of the kernel, and the kernels by the type of x and K, which are compiled
// one by one (kbit_experts_instance.cu).

#pragma once

#include "dsv4/formats/kbit.h"
#include "dsv4/ops/gemm/cuda/kbit_experts/config.cuh"

namespace dsv4::gemm::kbit_experts {

template <class X, int K>
void launch_kbit_experts(Device& device, const Params& params, int sides);

// run.operator()<kSides, kWhole>() for those of a call.
template <class Run>
void with_config(const Params& p, int sides, const Run& run) {
  if (sides == 1)
    return p.whole ? run.template operator()<1, true>() : run.template operator()<1, false>();
  p.whole ? run.template operator()<2, true>() : run.template operator()<2, false>();
}

inline Params make_params(const cuda::Problem& p, const GatedStep* gated, bool list_is_older,
                          int num_sms) {
  constexpr int64_t kPiece = 16;
  const cuda::StridedWeight& w = p.weight[0];
  Params params;
  params.plan = make_plan(p.n, p.k, p.projections, p.max_tiles, num_sms);
  params.whole = p.n % params.plan.block_rows() == 0 && p.k % kUnit == 0 &&
                 w.row_bytes % kPiece == 0 && w.matrix_bytes % kPiece == 0;
  params.codes = reinterpret_cast<const unsigned char*>(w.data);
  params.scale = reinterpret_cast<const uint8_t*>(w.scale);
  if (p.projections == 2) {
    params.codes_to_up = p.weight[1].data - w.data;
    params.scale_to_up = p.weight[1].scale - w.scale;
  }
  for (int s = 0; s < p.projections; ++s) {
    const cuda::StridedWeight& side = p.weight[s];
    params.scale2s[s] = side.scale2s;
    params.scale2[s] = side.scale2;
    if (reinterpret_cast<uintptr_t>(side.data) % kPiece != 0) params.whole = false;
  }
  params.codebook = w.codebook;
  params.x = reinterpret_cast<const uint16_t*>(p.x);
  params.gather = p.gather;
  params.tiles = p.tiles;
  params.num_tiles = p.num_tiles;
  params.out = p.out;
  params.matrix_bytes = w.matrix_bytes, params.row_bytes = w.row_bytes;
  params.scale_matrix_bytes = w.scale_matrix_bytes, params.scale_stride = w.scale_row_bytes;
  params.x_stride = p.x_stride, params.out_stride = p.out_stride;
  params.out_dtype = p.out_dtype;
  params.list_is_older = list_is_older;
  params.n = p.n, params.k = p.k;
  params.gated = with_limit(gated != nullptr ? *gated : GatedStep{});
  return params;
}

}  // namespace dsv4::gemm::kbit_experts
