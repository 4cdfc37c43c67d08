#include <cmath>

#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/xattn/scores/xattn_scores.h"

namespace dsv4 {
namespace {

constexpr int64_t kHeads = 32, kKvHeads = 8, kWidth = 128, kBlock = 128;

// One causal prompt of n tokens, Llama-3's heads.
struct ScoresCase {
  bench::Tensor cu, q, k, sums;
  XattnScoresArgs args;

  ScoresCase(int64_t n, int64_t stride)
      : cu(DType::kI32, {2}),
        q(DType::kBF16, {n, kHeads, kWidth}),
        k(DType::kBF16, {n, kKvHeads, kWidth}),
        sums(DType::kF32, {1, kHeads, ceil_div(n, kBlock), ceil_div(n, kBlock)}) {
    for (const bench::Tensor* tensor : {&q, &k}) bench::fill(*tensor);
    cu.as<int>()[0] = 0;
    cu.as<int>()[1] = static_cast<int>(n);
    args = {.batch = {.cu_q = cu, .cu_kv = cu},
            .q = q,
            .k = k,
            .stride = stride,
            .scale = 1.f / std::sqrt(static_cast<float>(kWidth)),
            .sums = sums};
  }
};

const bool kRegistered = [] {
  for (const int64_t n : {2048, 32768, 131072}) {
    if (n > 2048 && !bench::full_size()) continue;
    // The portable implementations take seconds at 32K.
    const Arch least = n > 2048 ? Arch::kSm90 : Arch::kCpu;
    for (const int64_t stride : {8, 16}) {
      bench::register_impls(
          fmt::format("xattn_scores/{}/S{}", n, stride), xattn_scores,
          [=] { return std::make_shared<ScoresCase>(n, stride); }, least);
    }
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
