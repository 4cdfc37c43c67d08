// expert_linear/FORMAT/rows per expert/e/n/k. Each call uses other weights, so they are read from
// memory.

#include "bench/op_bench.h"
#include "bench/weight_pool.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/parts/expert_linear/expert_linear_case.h"

namespace dsv4 {
namespace {

constexpr int64_t kExperts = 8;

struct Case {
  int bits;
  int64_t n, k;
  bench::WeightPool pool;
  bench::Arena arena;
  std::vector<WeightView> weights;
  ExpertLinearArgs args;

  Case(int bits_of, int64_t rows, int64_t n_of, int64_t k_of)
      : bits(bits_of), n(n_of), k(k_of), weights(kExperts) {
    Rng rng(1);
    next();
    args = test::random_expert_linear(arena, rng, DType::kBF16, weights,
                                      std::vector<int32_t>(kExperts, static_cast<int32_t>(rows)));
  }
  void next() {
    const WeightView stack = pool.next(WeightFormat::kKbit, kExperts * n, k, bits);
    for (int64_t e = 0; e < kExperts; ++e)
      weights[static_cast<size_t>(e)] = stack.rows(e * n, (e + 1) * n);
  }
};

const bool kRegistered = [] {
  for (const int bits : {2, 3, 4, 5}) {
    for (const int64_t rows : {1, 8, 32}) {
      bench::register_impls<ExpertLinearArgs>(
          fmt::format("expert_linear/k{}/rows:{}/e:{}/n:2048/k:4096", bits, rows, kExperts),
          expert_linear, [=] { return std::make_shared<Case>(bits, rows, 2048, 4096); });
    }
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
