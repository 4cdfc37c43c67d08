// Queries of some heads have the bits that they have among all, and rows of the caches, which every
// rank writes, do not depend on the heads of a call: by every implementation that ranks take under
// --deterministic.

#include "dsv4/base/error.h"
#include "dsv4/ops/model/attention_in/attention_in_check_test.h"
#include "tests/harness/slice_check.h"

namespace dsv4 {
namespace {

using test::AttentionInShape;
using test::Slice;

Slice<AttentionInArgs> heads(test::AttentionInCase& c, int64_t begin, int64_t end) {
  Slice<AttentionInArgs> slice{c.args, {}};
  AttentionInArgs& args = slice.args;
  const int64_t d = c.args.q.dim(2);
  args.weights.wq_b = c.args.weights.wq_b.rows(begin * d, end * d);
  args.q = c.arena.output(c.args.q.dtype, {c.args.q.dim(0), end - begin, d});
  attention_in.check(args);
  slice.got_want = {{args.q, c.args.q.slice(1, begin, end)}};
  for (const TensorView& same : {args.window.pages, args.entries.pages, args.state.slots,
                                 args.keys.pages, args.index_state.slots, args.index_q}) {
    if (same.rank > 0) slice.got_want.emplace_back(same, same);
  }
  return slice;
}

void check(const AttentionInShape& shape, Numerics numerics, const test::StoredAs& stored,
           Rng& rng) {
  test::AttentionInCase c(shape, numerics, stored);
  attention_in.check(c.args);
  std::vector<Slice<AttentionInArgs>> slices;
  for (const int64_t parts : {2, 5}) {
    const std::vector<int64_t> cuts = test::random_cuts(rng, shape.heads / 2, parts);
    for (size_t i = 1; i < cuts.size(); ++i)
      slices.push_back(heads(c, 2 * cuts[i - 1], 2 * cuts[i]));
  }
  check_slices(attention_in.impls, {.numerics = numerics}, c.arena, c.args, slices,
               fmt::format("{} tokens, {} heads, ratio {}, {}, {}", shape.tokens(), shape.heads,
                           shape.ratio, name(stored), name(numerics)));
}

TEST(AttentionInSlices, HaveTheBitsOfAllHeads) {
  Rng rng(static_cast<uint64_t>(testing::UnitTest::GetInstance()->random_seed()) + 31);
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
    for (const test::StoredAs& stored : {test::kFp8, test::kBf16, test::kKbit5}) {
      check({.runs = {{127, 1}}, .heads = 8}, numerics, stored, rng);
      check({.runs = {{0, 9}, {14, 3}}, .ratio = 4, .has_index = true, .select = true, .heads = 12},
            numerics, stored, rng);
    }
    check({.runs = {{255, 1}, {3, 40}}, .ratio = 128, .heads = 16, .row = {}}, numerics, test::kFp8,
          rng);
  }
}

}  // namespace
}  // namespace dsv4
