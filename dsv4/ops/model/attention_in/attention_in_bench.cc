// attention_in/KIND/t:TOKENS with the shapes of V4-Flash: a decode step of that many sequences in
// FP8, in which one of four (CSA) or one of 128 (HCA) closes an entry. Each call reads other
// weights. attention_in/KIND/k5/t:TOKENS has weights of 5 bits in place of FP8.

#include "dsv4/ops/model/attention_in/attention_in.h"

#include <algorithm>

#include "bench/op_bench.h"
#include "bench/weight_pool.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/model/attention_in/attention_in_case.h"

namespace dsv4 {
namespace {

enum class Kind { kSwa, kHca, kCsa };

test::AttentionInShape shape_of(Kind kind, int64_t t) {
  const bool csa = kind == Kind::kCsa;
  test::AttentionInShape shape{.ratio = csa                  ? 4
                                        : kind == Kind::kHca ? 128
                                                             : 0,
                               .has_index = csa,
                               .select = csa,
                               .hidden = 4096,
                               .rank = 1024,
                               .heads = 64,
                               .index_heads = 64,
                               .row = {},
                               .index_dim = IndexLayoutFp4{}.width,
                               .window_page = 64,
                               .entry_page = 64,
                               .in_order = true,
                               .state_spare = 0};
  // Sequence i is at position ratio - 1 + i: every ratio-th of them closes an entry.
  for (int64_t i = 0; i < t; ++i) shape.runs.push_back({std::max(shape.ratio, 1) - 1 + i, 1});
  return shape;
}

struct Case {
  bench::WeightPool pool;
  bench::Arena arena;
  AttentionInArgs args;

  // bits: of k-bit weights; 0: FP8
  Case(Kind kind, int bits, int64_t t) {
    bench::Random random(1);
    args = test::random_attention_in(arena, random, shape_of(kind, t), Numerics::kOfficial,
                                     [&](bool coded, int64_t n, int64_t k) {
                                       return pool.next(!coded     ? WeightFormat::kBF16
                                                        : bits > 0 ? WeightFormat::kKbit
                                                                   : WeightFormat::kFp8Block,
                                                        n, k, coded ? bits : 0);
                                     });
  }
  void next() {
    AttentionInWeights& w = args.weights;
    CompressorWeights &entry = w.compressor, &key = w.indexer.compressor;
    for (WeightView* weight : {&w.wq_a, &w.wq_b, &w.wkv, &entry.wkv, &entry.wgate, &key.wkv,
                               &key.wgate, &w.indexer.wq_b, &w.indexer.weights_proj})
      if (weight->n > 0) *weight = pool.next(weight->format, weight->n, weight->k, weight->bits);
  }
};

const bool kRegistered = [] {
  const auto add = [](const char* name, Kind kind) {
    for (const int64_t t : bench::token_counts()) {
      bench::register_impls<AttentionInArgs>(fmt::format("attention_in/{}/t:{}", name, t),
                                             attention_in,
                                             [=] { return std::make_shared<Case>(kind, 0, t); });
      bench::register_impls<AttentionInArgs>(
          fmt::format("attention_in/{}/k5/t:{}", name, t), attention_in,
          [=] { return std::make_shared<Case>(kind, 5, t); }, Arch::kCuda);
    }
  };
  add("swa", Kind::kSwa);
  add("hca", Kind::kHca);
  add("csa", Kind::kCsa);
  return true;
}();

}  // namespace
}  // namespace dsv4
