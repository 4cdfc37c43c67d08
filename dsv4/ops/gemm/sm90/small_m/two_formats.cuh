// Several weights of two formats times the same activations in one launch: the first clusters
// multiply weights that take Q8 of x, FP8 or bit planes, the others BF16 weights.

#pragma once

#include "dsv4/ops/gemm/epilogue/store.cuh"
#include "dsv4/ops/gemm/sm90/small_m/call.cuh"
#include "dsv4/ops/gemm/sm90/small_m/kernel.cuh"

namespace dsv4::gemm {

// The work of one CTA. C: Config of the first clusters. make_prologue(config, params of a format):
// what loads x.
template <class C, class Q8Epilogue, class Bf16Epilogue, class P, class MakePrologue>
__device__ void multiply_two_formats(const P& params, int cluster, int rank,
                                     const MakePrologue& make_prologue) {
  const int clusters = params.q8.split.clusters();
  if (cluster < clusters) {
    multiply_share<C>(params.q8, cluster, rank, make_prologue(C{}, params.q8),
                      Q8Epilogue{params.q8});
  } else {
    using Other = Config<Format::kBf16, bf16_tokens(C::kTokens)>;
    multiply_share<Other>(params.bf16, cluster - clusters, rank,
                          make_prologue(Other{}, params.bf16), Bf16Epilogue{params.bf16});
  }
}

template <class C, class P, class Q8Epilogue, class Bf16Epilogue>
__global__ void __launch_bounds__(kThreads, C::kCtasOfSm)
    two_formats_kernel(const __grid_constant__ P params) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  ptx::griddepcontrol_launch_dependents();
  const int bits = params.q8.split.rank_bits, cluster = static_cast<int>(blockIdx.x) >> bits;
  multiply_two_formats<C, Q8Epilogue, Bf16Epilogue>(
      params, cluster, static_cast<int>(blockIdx.x) - (cluster << bits),
      []<class D, class Q>(D, const Q& of_format) { return LoadX<D, Q>{of_format}; });
#else
  __trap();  // compiled for another architecture; reject() refuses those
#endif
}

template <class C>
auto store_two_formats_kernel() {
  return two_formats_kernel<C, TwoFormatParams, StoreTile<TwoFormatParams::Q8>,
                            StoreTile<TwoFormatParams::Bf16>>;
}

}  // namespace dsv4::gemm
