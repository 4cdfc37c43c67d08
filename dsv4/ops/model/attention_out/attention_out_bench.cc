// attention_out/TOKENS with the shapes of V4-Flash: 64 heads of 512 in 8 groups, D 4096, FP8. Each
// call reads other weights.

#include "dsv4/ops/model/attention_out/attention_out.h"

#include "bench/op_bench.h"
#include "bench/weight_pool.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/model/attention_out/attention_out_case.h"

namespace dsv4 {
namespace {

constexpr int64_t kHeads = 64, kHeadDim = 512, kGroups = 8, kRank = 1024, kWidth = 4096;

struct Case {
  bench::WeightPool pool;
  bench::Arena arena;
  AttentionOutArgs args;

  explicit Case(int64_t t) {
    bench::Random random(1);
    args = test::random_attention_out(arena, random, {t, kHeads, kHeadDim, kGroups, kWidth});
    next();
  }
  void next() {
    args.wo_a = pool.next(WeightFormat::kFp8Block, kGroups * kRank, kHeads * kHeadDim / kGroups);
    args.wo_b = pool.next(WeightFormat::kFp8Block, kWidth, kGroups * kRank);
  }
};

const bool kRegistered = [] {
  std::vector<int64_t> tokens = bench::token_counts();
  tokens.insert(tokens.end(), {8, 33, 48, 64});  // where implementations change
  for (const int64_t t : tokens) {
    bench::register_impls<AttentionOutArgs>(fmt::format("attention_out/t:{}", t), attention_out,
                                            [=] { return std::make_shared<Case>(t); });
  }
  return true;
}();

}  // namespace
}  // namespace dsv4
