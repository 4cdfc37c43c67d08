// One causal prompt with the heads of Llama 3.

#include "bench/op_bench.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/xattn/scores/xattn_scores_case.h"

namespace dsv4 {
namespace {

const bool kRegistered = [] {
  for (const int n : {2048, 32768, 131072}) {
    if (n > 2048 && !bench::full_size()) continue;
    // The portable implementations take seconds at 32K.
    const Arch least = n > 2048 ? Arch::kSm90 : Arch::kCpu;
    for (const int64_t stride : {8, 16}) {
      const auto build = [=](auto& arena, auto& random) {
        return test::random_scores(
            arena, random,
            {.lengths = {{n, n}}, .stride = stride, .heads = 32, .kv_heads = 8, .spare = false});
      };
      bench::register_case(fmt::format("xattn_scores/{}/S{}", n, stride), xattn_scores, build,
                           least);
    }
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
