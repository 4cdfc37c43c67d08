#include "dsv4/ops/xattn/scores/xattn_scores.h"

#include <cmath>
#include <limits>
#include <utility>

#include "dsv4/base/error.h"
#include "dsv4/ops/xattn/scores/xattn_scores_case.h"
#include "tests/harness/errors.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using test::Arena;
using test::Lengths;
using Scene = test::ScoresScene;

void check(Arena& arena, const XattnScoresArgs& args) {
  test::OpCase<XattnScoresArgs> test{
      .name =
          fmt::format("xattn_scores {} S {} block {}", to_string(args.q), args.stride, args.block),
      .args = args};
  // Scores are sums of S d products, a few units large: some 1e-5 absolute before the exponential,
  // which is a relative error of the sums.
  test.outputs = {{"sums", args.sums, xattn_scores_oracle(args), {.ulps = 400, .abs = 2e-6}}};
  check_op(xattn_scores.impls, Context{}, arena, test);
}

void check(const Scene& scene, uint64_t seed = 1) {
  Arena arena;
  Rng rng(seed);
  check(arena, test::random_scores(arena, rng, scene));
}

// Even tokens 1, odd tokens 2: every antidiagonal is (2 * 1 + 1 * 2) * S / 2 * d, so the softmax is
// flat. Tokens in forward order would also be flat, hence the lopsided second half.
TEST(XattnScores, SeedExample) {
  Arena arena;
  const TensorView q = arena.input(DType::kBF16, {512, 1, 128});
  const TensorView k = arena.input(DType::kBF16, {2048, 1, 128});
  for (const TensorView& x : {q, k}) {
    for (int64_t i = 0; i < x.numel(); ++i) test::set_value(x, i, i / 128 % 2 == 0 ? 1 : 2);
  }
  XattnScoresArgs args{.batch = test::prefill_batch(arena, {{512, 2048}}, false),
                       .q = q,
                       .k = k,
                       .stride = 4,
                       .scale = 1.f,
                       .sums = arena.output(DType::kF32, {1, 1, 4, 16})};
  check(arena, args);
  for (int64_t i = 0; i < args.sums.numel(); ++i) {
    EXPECT_NEAR(args.sums.as<float>()[i], 32.0 / 16, 1e-5);  // 32 rows of mass 1 over 16 blocks
  }
  // Odd keys 3 in the last block: 5 / 4 of the score per pair in reverse order.
  for (int64_t i = (2048 - 128) * 128; i < k.numel(); ++i) {
    if (i / 128 % 2 == 1) test::set_value(k, i, 3);
  }
  args.scale = 0.001f;
  check(arena, args);
  // (2 * 1 + 1 * 3) * 2 * 128 = 1280 against 1024, at scale 0.001 / 4.
  const double e = std::exp((1280 - 1024) * 0.001 / 4);
  EXPECT_NEAR(args.sums.as<float>()[15], 32 * e / (e + 15), 1e-4);
}

TEST(XattnScores, AgreesWithOracle) {
  for (const int64_t stride : {4, 8, 16, 64}) {
    for (const bool causal : {true, false}) {
      check({.lengths = {{512, 512}}, .causal = causal, .stride = stride});
      check({.lengths = {{300, 1000}}, .causal = causal, .stride = stride});
    }
  }
  check({.lengths = {{300, 300}}, .stride = 1});
  check({.lengths = {{300, 300}}, .stride = 128});
}

TEST(XattnScores, ShortLengths) {
  for (const int n : {1, 7, 8, 9, 127, 128, 129, 1000}) {
    check({.lengths = {{n, n}}});
    check({.lengths = {{n, n}}, .causal = false, .stride = 16});
    check({.lengths = {{1, n}}});
  }
}

// Chunks that start at every residue of S, and at some of the block.
TEST(XattnScores, AnyOffset) {
  for (int offset = 0; offset < 16; ++offset) {
    check({.lengths = {{130 + 3 * offset, 130 + 17 * offset}}, .stride = 8, .heads = 1}, 2);
    check({.lengths = {{100 + 31 * offset, 600}}, .stride = 16, .heads = 1}, 3);
  }
  check({.lengths = {{300, 200}}});  // queries before position 0
}

TEST(XattnScores, BatchesOfAnyLengths) {
  const std::vector<Lengths> lengths = {{130, 130}, {0, 40},    {1, 301},
                                        {0, 0},     {203, 129}, {64, 192}};
  for (const int64_t stride : {4, 8, 16, 64}) {
    check({.lengths = lengths, .stride = stride, .heads = 4, .kv_heads = 2});
    check({.lengths = lengths, .causal = false, .stride = stride, .heads = 4, .kv_heads = 4});
  }
}

TEST(XattnScores, GroupsOfHeads) {
  for (const int64_t group : {1, 3, 4, 7, 8}) {
    check({.lengths = {{200, 330}}, .heads = 2 * group, .kv_heads = 2});
  }
}

TEST(XattnScores, DtypesWidthsBlocks) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    check({.lengths = {{140, 260}}, .dtype = dtype});
    check({.lengths = {{140, 260}}, .d = 64, .dtype = dtype});
    check({.lengths = {{40, 70}}, .d = 20, .dtype = dtype});
  }
  check({.lengths = {{140, 260}}, .d = 192});
  check({.lengths = {{140, 260}}, .d = 256});
  check({.lengths = {{530, 1260}}, .stride = 16, .heads = 4, .d = 192, .dtype = DType::kF16});
  check({.lengths = {{530, 1261}}, .stride = 4, .heads = 4, .d = 256, .dtype = DType::kF16});
  for (const int64_t stride : {4, 8, 16}) {
    check({.lengths = {{200, 330}, {65, 65}}, .stride = stride, .block = 64});
  }
}

TEST(XattnScores, Pages) {
  for (const int64_t page_size : {16, 64, 128, 256, 24}) {
    check({.lengths = {{200, 330}, {129, 129}}, .page_size = page_size});
    check({.lengths = {{200, 2500}, {129, 131}},
           .causal = false,
           .stride = 4,
           .heads = 4,
           .d = 64,
           .page_size = page_size});
  }
  check({.lengths = {{700, 2500}, {129, 131}}, .stride = 16, .heads = 4, .page_size = 128});
}

TEST(XattnScores, LongRows) {
  check({.lengths = {{260, 4100}}, .stride = 16, .heads = 1, .d = 64});
  check({.lengths = {{2100, 2100}}, .heads = 4, .kv_heads = 1, .sigma = 4});
  check({.lengths = {{520, 4099}}, .causal = false, .stride = 8, .heads = 2});
}

// The last group of a sequence has fewer than S keys; the next sequence has NaN there.
TEST(XattnScores, IgnoresKeysPastASequence) {
  Arena arena;
  Rng rng(5);
  XattnScoresArgs args = test::random_scores(arena, rng, {.lengths = {{150, 203}, {10, 60}}});
  const TensorView k = arena.input(DType::kBF16, {263, 1, 128});
  test::fill_normal(k, rng);
  for (int64_t i = 203 * 128; i < k.numel(); ++i) {
    test::set_value(k, i, std::numeric_limits<double>::quiet_NaN());
  }
  args.k = k;
  // Sums of the second sequence are NaN, of the first not.
  test::OpCase<XattnScoresArgs> test{.name = "NaN after a sequence", .args = args};
  check_op(xattn_scores.impls, Context{}, arena, test);
  const std::vector<double> want = xattn_scores_oracle(args);
  for (int64_t i = 0; i < args.sums.numel() / 2; ++i) {
    EXPECT_NEAR(args.sums.as<float>()[i], want[static_cast<size_t>(i)], 1e-4) << i;
  }
}

TEST(XattnScores, SaysWhatIsWrong) {
  Arena arena;
  Rng rng(1);
  const XattnScoresArgs good = test::random_scores(arena, rng, {.lengths = {{300, 300}}, .d = 16});
  const auto error_with = [&](auto change) {
    XattnScoresArgs args = good;
    change(args);
    return test::error_of([&] { xattn_scores(Context{}, args); });
  };
  using test::says;
  EXPECT_TRUE(says(error_with([](auto& a) { a.stride = 6; }),
                   "stride=6, not a power of two up to block=128"));
  EXPECT_TRUE(says(error_with([](auto& a) { a.block = 32; }), "block=32, not 64 or 128"));
  EXPECT_TRUE(says(error_with([&](auto& a) {
                     a.sums = arena.output(DType::kF32, {1, 2, 2, 3});
                   }),
                   "sequence 0 has 3 query and 3 key blocks, sums [1, 2, 2, 3] F32"));
}

}  // namespace
}  // namespace dsv4
