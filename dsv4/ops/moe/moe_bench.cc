// moe/FORMAT/t with the shapes of V4-Flash (D 4096, inner 2048, 6 of 256 experts; here of 64, 860
// MB in 4 bits), a shared expert in FP8. Each call has other tokens, which choose other experts.

#include "dsv4/ops/moe/moe.h"

#include <vector>

#include "bench/op_bench.h"
#include "bench/weight_pool.h"
#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

constexpr int64_t kWidth = 4096, kInner = 2048, kChosen = 6, kExperts = 64;
constexpr int64_t kDraws = 16;  // different tokens, used in rotation

ExpertWeights next_expert(bench::WeightPool& pool, WeightFormat format, int bits) {
  return {.w1 = pool.next(format, kInner, kWidth, bits),
          .w3 = pool.next(format, kInner, kWidth, bits),
          .w2 = pool.next(format, kWidth, kInner, bits)};
}

struct Case {
  bench::WeightPool pool;
  std::vector<ExpertWeights> routed, shared;
  bench::Tensor x, ids, bias, acc;
  MoeArgs args;
  int64_t call = 0;

  Case(WeightFormat format, int bits, int64_t t)
      : x(DType::kBF16, {kDraws * t, kWidth}),
        ids(DType::kI32, {t}),
        bias(DType::kF32, {kExperts}),
        acc(DType::kF32, {t, kWidth}) {
    for (int64_t e = 0; e < kExperts; ++e) routed.push_back(next_expert(pool, format, bits));
    shared.push_back(next_expert(pool, WeightFormat::kFp8Block, 0));
    bench::fill(x, 0.01f);
    args = {.x = {},
            .ids = ids,
            .gate = pool.next(WeightFormat::kBF16, kExperts, kWidth),
            .bias = bias,
            .routed = routed,
            .shared = shared,
            .experts_per_token = kChosen,
            .route_scale = 1.5f,
            .swiglu_limit = 10.f,
            .acc = acc};
    next();
  }
  void next() {
    const int64_t t = args.acc.dim(0), draw = call++ % kDraws;
    args.x = x.view().slice(0, draw * t, (draw + 1) * t);
  }
};

const bool kRegistered = [] {
  for (const int64_t t : bench::token_counts()) {
    bench::register_impls<MoeArgs>(fmt::format("moe/mxfp4/t:{}", t), moe, [=] {
      return std::make_shared<Case>(WeightFormat::kMxfp4, 0, t);
    });
    bench::register_impls<MoeArgs>(fmt::format("moe/k3/t:{}", t), moe, [=] {
      return std::make_shared<Case>(WeightFormat::kKbit, 3, t);
    });
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
