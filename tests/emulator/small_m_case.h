// What tests of products by gemm/sm90 on the emulator share: a random product, and the kernel of
// small_m for a product as a launch.

#pragma once

#include "dsv4/ops/gemm/epilogue/store.cuh"
#include "dsv4/ops/gemm/sm90/small_m/call.cuh"
#include "dsv4/ops/gemm/sm90/small_m/kernel.cuh"
#include "dsv4/ops/parts/linear/linear_case.h"
#include "tests/emulator/launch.h"
#include "tests/emulator/tensor_map.h"
#include "tests/harness/weights.h"

namespace dsv4::test {

struct ProductScene {
  int64_t t, n, k;
  gemm::Format format = gemm::Format::kFp8;
  int64_t groups = 1;
  int num_sms = 2;
  bool quantize = false, f32_scale = false, f32_out = false;
};

inline gemm::Product random_product(Arena& arena, Rng& rng, const ProductScene& s) {
  const bool kbit = gemm::bits_of(s.format) > 0;
  const bool codes =
      (s.format == gemm::Format::kFp8 || kbit) && !gemm::converts_to_f16(s.format) && !s.quantize;
  const StoredAs stored = kbit
                              ? StoredAs{WeightFormat::kKbit, gemm::bits_of(s.format), true}
                              : StoredAs{s.format == gemm::Format::kBf16 ? WeightFormat::kBF16
                                                                         : WeightFormat::kFp8Block};
  const WeightView weight = random_weight(arena, rng, stored, s.groups * s.n, s.k,
                                          s.f32_scale ? DType::kF32 : DType::kE8M0);
  const LinearArgs args = random_linear(arena, rng,
                                        {.t = s.t,
                                         .x = codes ? DType::kE4M3 : DType::kBF16,
                                         .out = s.f32_out ? DType::kF32 : DType::kBF16,
                                         .groups = s.groups,
                                         .quantize_x = s.quantize},
                                        weight);
  return {.in = {.x = args.x, .x_scale = args.x_scale, .quantize = s.quantize},
          .weight = weight,
          .out = args.out,
          .groups = s.groups};
}

inline CUtensorMap make_map(const TmaBox& box) {
  return emulator::make_tma_map(box);
}

inline emulator::Launch launch_of(const gemm::Shape& shape, const gemm::Split& split, int tokens) {
  return {
      .grid = {split.clusters() * split.ranks(), static_cast<int>(ceil_div(shape.tokens, tokens))},
      .block = gemm::kThreads,
      .cluster = split.ranks(),
      .shared = static_cast<size_t>(gemm::Layout(shape.format, tokens, split).bytes),
      .pdl = true,
      .resident = 2};
}

inline emulator::Kernel product_kernel(const gemm::Product& p, int num_sms,
                                       bool by_columns = false) {
  const gemm::Shape shape = gemm::shape_of(p.weight, p.in, p.groups, by_columns);
  const gemm::Split split = gemm::make_split(shape, num_sms);
  const int tokens = gemm::tile_tokens(shape);
  emulator::Kernel kernel{launch_of(shape, split, tokens), {}};
  gemm::with_config(shape.format, tokens, [&](auto config) {
    kernel.body = [params = gemm::make_params(p, split, tokens, make_map)] {
      using P = gemm::Params<1>;
      gemm::small_m_kernel<decltype(config), P, gemm::StoreTile<P>>(params);
    };
  });
  return kernel;
}

}  // namespace dsv4::test
