#include <cmath>

#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/ops/xattn/select/xattn_select.h"

namespace dsv4 {
namespace {

constexpr int64_t kHeads = 32, kBlock = 128;

// One causal prompt of n tokens. Scores spread over some e-folds; 0.9 of the mass.
struct SelectCase {
  bench::Tensor cu, sums, tau, counts, indices;
  XattnSelectArgs args;

  explicit SelectCase(int64_t n)
      : cu(DType::kI32, {2}),
        sums(DType::kF32, {1, kHeads, ceil_div(n, kBlock), ceil_div(n, kBlock)}),
        tau(DType::kF32, {kHeads}),
        counts(DType::kI32, {1, kHeads, ceil_div(n, kBlock)}),
        indices(DType::kI32, {1, kHeads, ceil_div(n, kBlock), ceil_div(n, kBlock)}) {
    Rng rng(1);
    cu.as<int>()[0] = 0;
    cu.as<int>()[1] = static_cast<int>(n);
    for (int64_t i = 0; i < sums.view().numel(); ++i) {
      sums.as<float>()[i] = static_cast<float>(std::exp(2 * rng.normal()));
    }
    for (int64_t h = 0; h < kHeads; ++h) tau.as<float>()[h] = 0.9f;
    args = {.batch = {.cu_q = cu, .cu_kv = cu},
            .sums = sums,
            .tau = tau,
            .lists = {.counts = counts, .indices = indices}};
  }
};

const bool kRegistered = [] {
  for (const int64_t n : {8192, 32768, 131072}) {
    if (n > 8192 && !bench::full_size()) continue;
    bench::register_impls(fmt::format("xattn_select/{}", n), xattn_select,
                          [=] { return std::make_shared<SelectCase>(n); });
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
