#include "dsv4/ops/experts/experts.h"

#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/ops/experts/experts_impls.h"

namespace dsv4 {
namespace {

constexpr Impl<ExpertsArgs> kExperts[] = {
#if DSV4_CUDA
    {"cuda_mma", Arch::kCuda, false, experts_cuda_mma_reject, experts_cuda_mma},
    {"cuda_mma_rounded", Arch::kCuda, false, experts_cuda_mma_rounded_reject, experts_cuda_mma,
     0x1p-9},
    {"cuda", Arch::kCuda, true, experts_cuda_reject, experts_cuda},
#endif
    {"cpu", Arch::kCpu, true, accept_all<ExpertsArgs>, experts_cpu},
};

void check_shape(const char* what, const WeightView& w, int64_t n, int64_t k) {
  check(what, w);
  DSV4_CHECK(w.n == n && w.k == k, "{}: want [{}, {}], got [{}, {}]", what, n, k, w.n, w.k);
}

void check(const ExpertsArgs& args) {
  Dim t("t"), d("d"), k("k");
  expect("x", args.x, {DType::kF32, DType::kBF16}, {t, d});
  if (args.experts.empty()) {
    DSV4_CHECK(args.weights.empty() && args.table.size() == 1,
               "no expert ids: want no weights and one expert, got {} weights and {} experts",
               args.weights.empty() ? "no" : "some", args.table.size());
  } else {
    expect("experts", args.experts, {DType::kI32}, {t, k});
    expect("weights", args.weights, {DType::kF32}, {t, k});
  }
  expect("acc", args.acc, {DType::kF32}, {t, d});
  DSV4_CHECK(args.swiglu_limit >= 0, "swiglu_limit is {}", args.swiglu_limit);
  for (const ExpertWeights& expert : args.table) {
    const int64_t inner = args.table.front().w1.n;
    check_shape("w1", expert.w1, inner, *d);
    check_shape("w3", expert.w3, inner, *d);
    check_shape("w2", expert.w2, *d, inner);
  }
}

// The weights of an expert are read once, however many tokens chose it.
Cost cost(const ExpertsArgs& args) {
  const int64_t t = args.x.dim(0), k = slots(args);
  const int64_t ids = args.experts.empty() ? 0 : args.experts.bytes() + args.weights.bytes();
  Cost cost{.bytes =
                static_cast<double>(args.x.bytes() + ids + (args.add ? 2 : 1) * args.acc.bytes())};
  std::vector<bool> active(args.table.size());
  for (int64_t i = 0; i < t; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      const auto e =
          args.experts.empty() ? size_t{0} : static_cast<size_t>(args.experts.row<int32_t>(i)[j]);
      const ExpertWeights& expert = args.table[e];
      cost.flops += 6.0 * static_cast<double>(expert.w1.n * expert.w1.k);
      if (active[e]) continue;
      active[e] = true;
      cost.bytes += static_cast<double>(expert.w1.bytes() + expert.w2.bytes() + expert.w3.bytes());
    }
  }
  return cost;
}

}  // namespace

constinit const Op<ExpertsArgs> experts{"experts", kExperts, check, cost};

}  // namespace dsv4
