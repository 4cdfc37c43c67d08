#include "dsv4/ops/xattn/select/xattn_select.h"

#include <cmath>
#include <limits>

#include "dsv4/base/error.h"
#include "dsv4/formats/float16.h"
#include "dsv4/ops/xattn/attention/prefill_batch_case.h"
#include "dsv4/ops/xattn/select/xattn_select_case.h"
#include "tests/harness/errors.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using test::Arena;
using test::Lengths;

using Scene = test::SelectScene;

void check(const Scene& scene, uint64_t seed = 1) {
  Arena arena;
  Rng rng(seed);
  const XattnSelectArgs args = test::random_select(arena, rng, scene);
  const XattnSelectWant want = xattn_select_oracle(args);
  test::OpCase<XattnSelectArgs> test{
      .name = fmt::format("xattn_select {} tau {}", to_string(args.sums), scene.tau), .args = args};
  test.outputs = {{"counts", args.lists.counts, want.counts, {.ulps = 0}},
                  {"indices", args.lists.indices, want.indices, {.ulps = 0}}};
  check_op(xattn_select.impls, Context{}, arena, test);
}

TEST(XattnSelect, AgreesWithOracle) {
  for (const int n : {1, 128, 129, 1000, 3001, 5000}) {
    for (const double tau : {0.0, 0.3, 0.9, 0.999, 1.0, 1.5}) {
      check({.lengths = {{n, n}}, .tau = tau});
      check({.lengths = {{n, n}}, .causal = false, .tau = tau, .sink = false});
    }
  }
}

TEST(XattnSelect, TiesTakeTheLowerBlock) {
  for (const auto scores : {Scene::Scores::kBf16, Scene::Scores::kEqual, Scene::Scores::kZero,
                            Scene::Scores::kOneBlock, Scene::Scores::kStrange}) {
    for (const double tau : {0.0, 0.5, 0.9, 1.0}) {
      check({.lengths = {{4000, 4000}}, .tau = tau, .scores = scores}, 3);
      check({.lengths = {{700, 6001}}, .causal = false, .tau = tau, .scores = scores}, 4);
    }
  }
}

TEST(XattnSelect, CountsAndLimits) {
  for (const int64_t k : {1, 2, 5, 33, 1000}) {
    check({.lengths = {{5000, 5000}}, .top_k = k});
    check({.lengths = {{5000, 5000}}, .top_k = k, .scores = Scene::Scores::kBf16});
  }
  check({.lengths = {{5000, 5000}}, .tau = 0.5, .min_blocks = 12});
  check({.lengths = {{5000, 5000}}, .tau = 0.95, .max_blocks = 6});
  check({.lengths = {{5000, 5000}}, .tau = 0.95, .max_blocks = 1});
  check({.lengths = {{5000, 5000}},
         .min_blocks = 7,
         .max_blocks = 7,
         .scores = Scene::Scores::kZero});
}

TEST(XattnSelect, BatchesAndOffsets) {
  const std::vector<Lengths> lengths = {{130, 1130}, {0, 40},    {1, 300},
                                        {0, 0},      {900, 329}, {64, 192}};
  check({.lengths = lengths, .heads = 3});
  check({.lengths = lengths, .causal = false, .heads = 3});
  check({.lengths = lengths, .block = 64});
}

TEST(XattnSelect, DenseRows) {
  check({.lengths = {{3000, 3000}, {1000, 1000}}, .tau = 0.3, .min_length = 2000});
  check({.lengths = {{3000, 3000}, {1000, 1000}}, .tau = 0.3, .dense_tail = 300});
  // Chunks of longer prompts.
  check({.lengths = {{1000, 1000}, {1000, 2500}},
         .tau = 0.3,
         .min_length = 2000,
         .dense_tail = 700,
         .prompt_lengths = {3000, 2500}});
}

// Rows of one, of 8 and of 32 warps on a GPU.
TEST(XattnSelect, LongRows) {
  for (const int n : {1024 * 16, 1025 * 16, 8192 * 16, 9000 * 16}) {
    for (const auto scores : {Scene::Scores::kRandom, Scene::Scores::kBf16}) {
      check({.lengths = {{20, n}}, .block = 16, .tau = 0.8, .scores = scores});
    }
    check({.lengths = {{20, n}}, .block = 16, .top_k = 900, .scores = Scene::Scores::kBf16});
  }
}

TEST(XattnSelect, SaysWhatIsWrong) {
  Arena arena;
  const XattnSelectArgs good{.batch = test::prefill_batch(arena, {{300, 300}}, true),
                             .sums = arena.input(DType::kF32, {1, 2, 2, 3}),
                             .tau = arena.input(DType::kF32, {2}),
                             .lists = {.counts = arena.output(DType::kI32, {1, 2, 2}),
                                       .indices = arena.output(DType::kI32, {1, 2, 2, 3})}};
  const auto error_with = [&](auto change) {
    XattnSelectArgs args = good;
    change(args);
    return test::error_of([&] { xattn_select(Context{}, args); });
  };
  EXPECT_TRUE(test::says(error_with([](auto&) {}),
                         "sequence 0 has 3 query and 3 key blocks, sums [1, 2, 2, 3] F32"));
  EXPECT_TRUE(test::says(error_with([](auto& a) { a.tau = {}; }), "neither tau nor top_k"));
  EXPECT_TRUE(test::says(error_with([](auto& a) { a.min_blocks = 4, a.max_blocks = 3; }),
                         "min_blocks=4 and max_blocks=3"));
}

}  // namespace
}  // namespace dsv4
