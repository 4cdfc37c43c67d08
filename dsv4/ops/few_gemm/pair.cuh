// Several weights of two formats times the same activations in one launch: the first clusters
// multiply FP8 weights, the others BF16 weights.

#pragma once

#include <algorithm>

#include "dsv4/ops/few_gemm/kernel.cuh"
#include "dsv4/ops/few_gemm/launch.cuh"

namespace dsv4::few_gemm {

// Fp8, Bf16: Params, or derived from it.
template <class Fp8_, class Bf16_>
struct PairOf {
  using Fp8 = Fp8_;
  using Bf16 = Bf16_;
  Fp8 fp8;
  Bf16 bf16;
};
using PairParams = PairOf<Params<kFp8Targets>, Params<kBf16Targets>>;

// The work of one CTA. make_prologue(config, params of a format): what loads x.
template <int kTokens, class Fp8Epilogue, class Bf16Epilogue, class P, class MakePrologue>
__device__ void multiply_pair(const P& params, int cluster, int rank,
                              const MakePrologue& make_prologue) {
  const int clusters = params.fp8.split.clusters();
  if (cluster < clusters) {
    using C = Config<Format::kFp8, kTokens>;
    multiply_share<C>(params.fp8, cluster, rank, make_prologue(C{}, params.fp8),
                      Fp8Epilogue{params.fp8});
  } else {
    using C = Config<Format::kBf16, kTokens>;
    multiply_share<C>(params.bf16, cluster - clusters, rank, make_prologue(C{}, params.bf16),
                      Bf16Epilogue{params.bf16});
  }
}

template <int kTokens, class P, class Fp8Epilogue, class Bf16Epilogue>
__global__ void __launch_bounds__(kThreads) few_gemm_pair_kernel(const __grid_constant__ P params) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  ptx::griddepcontrol_launch_dependents();
  const int bits = params.fp8.split.rank_bits, cluster = static_cast<int>(blockIdx.x) >> bits;
  multiply_pair<kTokens, Fp8Epilogue, Bf16Epilogue>(
      params, cluster, static_cast<int>(blockIdx.x) - (cluster << bits),
      []<class C, class Q>(C, const Q& of_format) { return LoadX<C, Q>{of_format}; });
#else
  __trap();  // compiled for another architecture; reject() refuses those
#endif
}

template <int kTokens>
auto store_pair_kernel() {
  return few_gemm_pair_kernel<kTokens, PairParams, StoreTile<PairParams::Fp8>,
                              StoreTile<PairParams::Bf16>>;
}

// A call as a launch.
struct Pair {
  Shape fp8, bf16;
  SplitPair split;
  int tokens;

  Pair(std::span<const Target> targets, int64_t t, int64_t k, int num_sms, int prologue_bytes = 0)
      : Pair(shape_of(Format::kFp8, targets, t, k, prologue_bytes),
             shape_of(Format::kBf16, targets, t, k, prologue_bytes), num_sms) {}
  Pair(const Shape& fp8_shape, const Shape& bf16_shape, int num_sms)
      : fp8(fp8_shape),
        bf16(bf16_shape),
        split(make_split_pair(fp8, bf16, num_sms)),
        tokens(tile_tokens(fp8.tokens)) {}

  int64_t ctas() const {
    return int64_t{split.fp8.ranks()} * (split.fp8.clusters() + split.bf16.clusters());
  }
  int64_t shared() const {
    return std::max(Layout(Format::kFp8, tokens, split.fp8).bytes,
                    Layout(Format::kBf16, tokens, split.bf16).bytes);
  }

  static bool is_fp8(const Target& target) {
    return target.weight.format == WeightFormat::kFp8Block;
  }
  static Shape shape_of(Format format, std::span<const Target> targets, int64_t t, int64_t k,
                        int prologue_bytes = 0) {
    int64_t tiles = 0;
    for (const Target& target : targets)
      if (is_fp8(target) == (format == Format::kFp8)) tiles += ceil_div(target.weight.n, kTileRows);
    return {.format = format,
            .tokens = t,
            .k = k,
            .tiles = tiles,
            .tiles_per_group = std::max<int64_t>(1, tiles),
            .prologue_bytes = prologue_bytes};
  }
};

// x: bf16; quantized: what the FP8 weights take. P: a PairOf.
template <class P = PairParams, class MakeMap>
P make_pair_params(const Pair& pair, std::span<const Target> targets, const ConstTensorView& x,
                   const Activations& quantized, const MakeMap& make_map) {
  P params;
  set_activations(params.fp8, Format::kFp8, quantized, pair.split.fp8, pair.fp8.k, pair.tokens,
                  make_map);
  set_activations(params.bf16, Format::kBf16, Activations{.x = x}, pair.split.bf16, pair.bf16.k,
                  pair.tokens, make_map);
  int fp8 = 0, bf16 = 0, fp8_tiles = 0, bf16_tiles = 0;
  for (const Target& target : targets) {
    const bool first = Pair::is_fp8(target);
    Matrix& matrix = first ? params.fp8.matrix[fp8++] : params.bf16.matrix[bf16++];
    int& tiles = first ? fp8_tiles : bf16_tiles;
    matrix = make_matrix(target.weight, target.out, 1, tiles, make_map);
    tiles += matrix.tiles;
  }
  return params;
}

}  // namespace dsv4::few_gemm
