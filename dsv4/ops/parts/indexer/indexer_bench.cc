#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/formats/float16.h"
#include "dsv4/ops/parts/indexer/indexer_case.h"

namespace dsv4 {
namespace {

// bf16 scores, as the reference has them: ties are common.
TopKArgs top_k_args(bench::Arena& arena, bench::Random& random, int64_t t, int64_t n, int64_t k) {
  const TensorView scores = arena.input(DType::kF32, {t, n});
  const TensorView visible = arena.input(DType::kI32, {t});
  for (int64_t i = 0; i < t * n; ++i) {
    scores.as<float>()[i] = round_to_bf16(static_cast<float>(random.normal()));
  }
  std::fill_n(visible.as<int32_t>(), t, static_cast<int32_t>(n));
  return {.scores = scores, .visible = visible, .indices = arena.output(DType::kI32, {t, k})};
}

const bool kRegistered = [] {
  for (const int64_t t : bench::token_counts()) {
    for (const int64_t h : {4, 64}) {
      bench::register_case(fmt::format("index_scores/t{} h{} {} keys", t, h, 4096), index_scores,
                           [=](auto& arena, auto& random) {
                             return test::random_index_scores(
                                 arena, random,
                                 {.t = t, .h = h, .n = 4096, .all_visible = true, .sequences = 1});
                           });
    }
    for (const int64_t n : {4096, 262144}) {
      if (t * n > int64_t{1} << 26) continue;  // 256 MB of scores
      bench::register_case(
          fmt::format("top_k/t{} 512 of {}", t, n), top_k,
          [=](auto& arena, auto& random) { return top_k_args(arena, random, t, n, 512); });
    }
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
