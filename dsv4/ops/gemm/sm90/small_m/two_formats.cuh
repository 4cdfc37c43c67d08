// Several weights of two formats times the same activations in one launch: the first clusters
// multiply weights that take Q8 of x, FP8 or bit planes, the others BF16 weights.

#pragma once

#include <algorithm>

#include "dsv4/ops/gemm/epilogue/store.cuh"
#include "dsv4/ops/gemm/sm90/small_m/call.cuh"
#include "dsv4/ops/gemm/sm90/small_m/kernel.cuh"

namespace dsv4::gemm {

// Q8, Bf16: Params, or derived from it.
template <class Q8_, class Bf16_>
struct TwoFormatsOf {
  using Q8 = Q8_;
  using Bf16 = Bf16_;
  Q8 q8;
  Bf16 bf16;
};
using TwoFormatParams = TwoFormatsOf<Params<kQ8Targets>, Params<kBf16Targets>>;

// Tokens of a CTA of BF16 weights, beside those of the others.
constexpr int bf16_tokens(int tokens) {
  return tokens < 8 ? 8 : tokens;
}

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

// A call as a launch.
struct TwoFormats {
  Shape q8, bf16;
  TwoSplits split;
  int tokens;  // of a CTA of the first clusters

  TwoFormats(std::span<const Target> targets, int64_t t, int64_t k, int num_sms,
             int prologue_bytes = 0)
      : TwoFormats(shape_of(q8_format(targets), targets, t, k, prologue_bytes),
                   shape_of(Format::kBf16, targets, t, k, prologue_bytes), num_sms) {}
  TwoFormats(const Shape& q8_shape, const Shape& bf16_shape, int num_sms)
      : q8(q8_shape),
        bf16(bf16_shape),
        split(make_two_splits(q8, bf16, num_sms)),
        tokens(tile_tokens(q8.format, q8.tokens)) {}

  int64_t ctas() const {
    return int64_t{split.q8.ranks()} * (split.q8.clusters() + split.bf16.clusters());
  }
  int64_t shared() const {
    return std::max(Layout(q8.format, tokens, split.q8).bytes,
                    Layout(Format::kBf16, bf16_tokens(tokens), split.bf16).bytes);
  }

  // Of the first clusters.
  static bool takes_q8(const Target& target) { return target.weight.format != WeightFormat::kBF16; }
  static Format q8_format(std::span<const Target> targets) {
    for (const Target& target : targets)
      if (takes_q8(target)) return format_of(target.weight, {.quantize = true});
    return Format::kFp8;
  }
  static Shape shape_of(Format format, std::span<const Target> targets, int64_t t, int64_t k,
                        int prologue_bytes = 0) {
    int64_t tiles = 0;
    for (const Target& target : targets)
      if (takes_q8(target) == (format != Format::kBf16))
        tiles += ceil_div(target.weight.n, kTileRows);
    return {.format = format,
            .tokens = t,
            .k = k,
            .tiles = tiles,
            .tiles_per_group = std::max<int64_t>(1, tiles),
            .prologue_bytes = prologue_bytes};
  }
};

// x: bf16; quantized: what the first clusters take. P: a TwoFormatsOf.
template <class P = TwoFormatParams, class MakeMap>
P make_two_format_params(const TwoFormats& pair, std::span<const Target> targets,
                         const ConstTensorView& x, const Activations& quantized,
                         const MakeMap& make_map) {
  P params;
  set_activations(params.q8, pair.q8.format, quantized, pair.split.q8, pair.q8.k, pair.tokens,
                  make_map);
  set_activations(params.bf16, Format::kBf16, Activations{.x = x}, pair.split.bf16, pair.bf16.k,
                  bf16_tokens(pair.tokens), make_map);
  int q8 = 0, bf16 = 0, q8_tiles = 0, bf16_tiles = 0;
  for (const Target& target : targets) {
    const bool first = TwoFormats::takes_q8(target);
    Matrix& matrix = first ? params.q8.matrix[q8++] : params.bf16.matrix[bf16++];
    int& tiles = first ? q8_tiles : bf16_tiles;
    matrix = make_matrix(target.weight, target.out, 1, tiles, make_map);
    tiles += matrix.tiles;
  }
  return params;
}

}  // namespace dsv4::gemm
