// What tests of products by gemm/sm90/small_m on the emulator share: the kernel of a product as a
// launch.

#pragma once

#include "dsv4/ops/gemm/epilogue/store.cuh"
#include "dsv4/ops/gemm/sm90/small_m/call.cuh"
#include "dsv4/ops/gemm/sm90/small_m/kernel.cuh"
#include "tests/emulator/launch.h"
#include "tests/emulator/tensor_map.h"

namespace dsv4::test {

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

inline emulator::Kernel product_kernel(const gemm::Product& p, int num_sms) {
  const gemm::Shape shape = gemm::shape_of(p.weight, p.in, p.groups);
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
