#include "dsv4/ops/model/attention_in/attention_in.h"

#include <algorithm>

#include "dsv4/base/error.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#endif
#include "dsv4/ops/model/attention_in/attention_in_check_test.h"
#include "dsv4/ops/model/hc_boundary/boundary_inside_test.h"

namespace dsv4 {
namespace {

using test::kBf16;
using test::kFp8;
using test::kKbit4;
using test::kKbit5;
using test::pool_output;
using Case = test::AttentionInCase;
using Run = test::TokenRun;
using Shape = test::AttentionInShape;

// Token i of runs of one token each. cu_tokens: {0, 1}
AttentionInArgs one_token(const AttentionInArgs& a, int64_t i, const Shape& shape,
                          const TensorView& cu_tokens) {
  AttentionInArgs one = a;
  const auto row = [i](const auto& view) { return view.slice(0, i, i + 1); };
  if (shape.boundary) one.boundary = test::one_token(a.boundary, i);
  one.x = row(a.x), one.positions = row(a.positions), one.window_rows = row(a.window_rows);
  one.q = row(a.q);
  if (shape.select) {
    const int64_t at = i - a.index_first;
    const bool wanted = at >= 0 && at < a.index_q.dim(0);
    one.index_q = wanted ? a.index_q.slice(0, at, at + 1) : a.index_q.slice(0, 0, 0);
    one.index_first = 0, one.index_weights = row(a.index_weights);
  }
  if (shape.ratio == 0) return one;
  one.cu_tokens = cu_tokens, one.start = row(a.start), one.state_slots = row(a.state_slots);
  const auto closes = [&](int64_t run) {
    return (shape.runs[static_cast<size_t>(run)].start + 1) % shape.ratio == 0 ? 1 : 0;
  };
  int64_t before = 0;
  for (int64_t run = 0; run < i; ++run) before += closes(run);
  one.entry_rows = a.entry_rows.slice(0, before, before + closes(i));
  one.entry_positions = a.entry_positions.slice(0, before, before + closes(i));
  return one;
}

bool tokens_are_runs(const Shape& shape) {
  return shape.spare == 0 && std::all_of(shape.runs.begin(), shape.runs.end(),
                                         [](const Run& run) { return run.count == 1; });
}

void check_case(const Shape& shape, Numerics numerics, test::StoredAs stored = kFp8,
                bool invariant = false) {
  Case c(shape, numerics, stored);
  const TensorView single = c.arena.input(DType::kI32, {2});
  single.as<int32_t>()[0] = 0, single.as<int32_t>()[1] = 1;
  c.arena.keep_order(single);
  const AttentionInArgs& args = c.args;
  const Context context{.numerics = numerics, .need_batch_invariant = invariant};
  // `cuda_mma` rounds k-bit weights to bf16, from 5 tokens on.
  const bool rounds = stored.bits > 0 && shape.tokens() > 4;
  const test::Tolerances& tolerances = numerics == Numerics::kExact ? test::kExact
                                       : rounds                     ? test::kRoundedWeights
                                                                    : test::kOfficial;
  const AttentionInWant want = attention_in_oracle(context, args);
  test::OpCase<AttentionInArgs> test{
      .name = fmt::format("attention_in t={} ratio={} {} {}", shape.tokens(), shape.ratio,
                          name(stored), name(numerics)),
      .args = args};
  test.outputs = {
      {"q", args.q, want.q, tolerances.q},
      pool_output("window", args.window, args.window_rows, want.window, tolerances.rows)};
  if (shape.ratio > 0) {
    test.outputs.push_back(
        pool_output("entries", args.entries, args.entry_rows, want.entries, tolerances.rows));
    test.outputs.push_back({"state", args.state.slots, want.state, tolerances.state});
  }
  if (shape.has_index) {
    test.outputs.push_back(
        pool_output("keys", args.keys, args.entry_rows, want.keys, tolerances.keys));
    test.outputs.push_back(
        {"index_state", args.index_state.slots, want.index_state, tolerances.state});
  }
  if (shape.select) {
    test.outputs.push_back({"index_q", args.index_q, want.index_q, tolerances.index_q});
    test.outputs.push_back(
        {"index_weights", args.index_weights, want.index_weights, tolerances.index_weights});
  }
  test.strided = [](AttentionInArgs& a, test::StridedCopy& copy) {
    copy(a.x), copy(a.window.pages), copy(a.index_weights);
  };
  if (tokens_are_runs(shape)) {
    test.num_tokens = shape.tokens();
    test.one_token = [&](const AttentionInArgs& a, int64_t i) {
      return one_token(a, i, shape, single);
    };
  }
  check_op(attention_in.impls, context, c.arena, test);
}

// Nothing closes; one block; several of some sequences and none of others; no tokens; padding.
const std::vector<std::vector<Run>> kSteps = {
    {{1, 1}}, {{127, 1}}, {{0, 9}, {6, 1}, {3, 5}, {126, 3}}, {{5, 0}}};

TEST(AttentionIn, WindowOnly) {
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
    for (const auto& runs : kSteps) check_case({.runs = runs}, numerics);
    check_case({.runs = {{3, 2}}, .spare = 2}, numerics);
    check_case({.runs = {{0, 3}}}, numerics, kBf16);
  }
}

TEST(AttentionIn, EntriesOfAllTokens) {
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
    for (const auto& runs : kSteps) check_case({.runs = runs, .ratio = 128}, numerics);
    check_case({.runs = {{0, 9}, {14, 3}}, .ratio = 8, .spare = 2}, numerics);
  }
}

TEST(AttentionIn, EntriesWithAnIndex) {
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
    for (const bool select : {false, true}) {
      for (const auto& runs : kSteps)
        check_case({.runs = runs, .ratio = 4, .has_index = true, .select = select}, numerics);
    }
    check_case(
        {.runs = {{0, 9}, {14, 3}}, .ratio = 4, .has_index = true, .select = true, .spare = 2},
        numerics);
  }
}

// Indexer queries of some tokens, of none, and of the last ones.
TEST(AttentionIn, IndexQueriesOfSomeTokens) {
  Shape shape{.runs = {{0, 9}, {14, 11}}, .ratio = 4, .has_index = true, .select = true};
  Shape alone = shape;
  alone.runs.clear();
  for (int64_t i = 0; i < 9; ++i) alone.runs.push_back({3 + i % 5, 1});
  for (const auto& [first, count] : {std::pair(0, 7), {20, 0}, {16, 4}}) {
    shape.index_first = first, shape.index_tokens = count;
    check_case(shape, Numerics::kOfficial);
  }
  check_case(shape, Numerics::kExact);
  alone.index_first = 3, alone.index_tokens = 5;
  check_case(alone, Numerics::kOfficial);
  shape.hidden = 512, shape.rank = 256, shape.heads = 2, shape.row = {}, shape.index_dim = 128;
  shape.index_first = 5, shape.index_tokens = 12;
  check_case(shape, Numerics::kOfficial);
}

// More tokens than a launch of few tokens has, with indexer queries of all and of some. With
// latents of 256 columns a code of Q8 that the oracle rounds the other way moves one of 153,600
// queries past the tolerance, in all implementations alike.
TEST(AttentionIn, ManyTokensHaveTheBitsOfEachAlone) {
  Shape shape{.ratio = 4,
              .has_index = true,
              .select = true,
              .hidden = 512,
              .rank = 512,
              .heads = 2,
              .row = {},
              .index_dim = 128};
  for (int64_t i = 0; i < 150; ++i) shape.runs.push_back({3 + i % 5, 1});
  const auto check_both = [&] {
    for (const bool invariant : {false, true})
      check_case(shape, Numerics::kOfficial, kFp8, invariant);
  };
  check_both();
  shape.index_first = 5, shape.index_tokens = 100;
  check_both();
  // Products of x of four ranks, by the kernels of few tokens and of many.
  shape.index_first = 0, shape.index_tokens = -1, shape.hidden = 1280;
  check_case(shape, Numerics::kOfficial, kFp8, true);
  shape.runs.resize(100);
  check_case(shape, Numerics::kOfficial, kFp8, true);
}

// The widths of V4-Flash, with fewer rows and heads.
TEST(AttentionIn, WidthsOfTheReleases) {
  const Shape shape{.runs = {{2, 3}, {7, 1}},
                    .ratio = 4,
                    .has_index = true,
                    .select = true,
                    .hidden = 512,
                    .rank = 256,
                    .heads = 2,
                    .row = {},
                    .index_dim = 128};
  check_case(shape, Numerics::kOfficial);
  check_case(shape, Numerics::kExact);
  // Several entries of a sequence, a token of each, padding, no entry; HCA.
  Shape csa = shape, hca = shape;
  csa.runs = {{0, 9}, {6, 1}, {3, 5}, {5, 0}, {7, 1}, {126, 3}}, csa.spare = 2;
  hca.ratio = 128, hca.has_index = hca.select = false;
  check_case(csa, Numerics::kOfficial);
  // Latents of one scale group: a launch of their own normalizes them from 9 tokens on.
  csa.rank = 128, csa.runs = {{0, 8}};
  check_case(csa, Numerics::kOfficial);
  csa.runs = {{0, 9}, {6, 3}};
  check_case(csa, Numerics::kOfficial);
  for (const auto& runs : kSteps) {
    hca.runs = runs;
    check_case(hca, Numerics::kOfficial);
  }
}

// A CSA layer whose latents have eight scale groups.
Shape csa_of_eight_groups() {
  return {.ratio = 4,
          .has_index = true,
          .select = true,
          .hidden = 512,
          .rank = 1024,
          .heads = 16,
          .index_heads = 64,
          .row = {},
          .index_dim = 128};
}

// A token alone has the bits that it has among 20: tiles of 8 and 32 tokens, queries in one launch
// and by ops, rows of both. Latents of eight scale groups, so that an order of additions shows.
TEST(AttentionIn, TokensDoNotDependOnTheirNeighbors) {
  Shape shape = csa_of_eight_groups();
  for (int64_t i = 0; i < 20; ++i) shape.runs.push_back({3 + i % 5, 1});
  check_case(shape, Numerics::kOfficial);
  shape.ratio = 128, shape.has_index = shape.select = false;
  shape.heads = 2, shape.rank = 256, shape.runs[3].start = 127;
  check_case(shape, Numerics::kOfficial);
}

// Tiles of 48 and 64 tokens, filled and not, in products of x and in queries. Latents of two scale
// groups: with a hundred thousand of them some lie so near a rounding point that another order of
// additions gives another code than the oracle's.
TEST(AttentionIn, ManyTokensDoNotDependOnTheirNeighbors) {
  for (const int64_t t : {33, 48, 63}) {
    Shape shape = csa_of_eight_groups();
    shape.heads = 3, shape.index_heads = 6, shape.rank = 256;
    for (int64_t i = 0; i < t; ++i) shape.runs.push_back({3 + i % 5, 1});
    if (t == 40 || t == 63) check_case(shape, Numerics::kOfficial);
    shape.ratio = 128, shape.has_index = shape.select = false;
    shape.heads = 2, shape.runs[3].start = 127;
    check_case(shape, Numerics::kOfficial);
  }
}

// For sm90_few, up to 8 tokens: tiles of 2 and 8, latents that every CTA normalizes and stored
// ones; five slabs; a latent of 384 columns, whose queries other ops compute.
TEST(AttentionIn, BitPlanes) {
  Shape shape = csa_of_eight_groups();
  for (int64_t i = 0; i < 9; ++i) {
    shape.runs.push_back({3 + i % 5, 1});
    if (i != 3 && i != 6) check_case(shape, Numerics::kOfficial, i % 2 == 0 ? kKbit5 : kKbit4);
  }
  shape.ratio = 128, shape.has_index = shape.select = false, shape.heads = 3, shape.hidden = 768;
  for (const int64_t rank : {384, 1280}) {
    shape.rank = rank;
    shape.runs = {{127, 1}};
    check_case(shape, Numerics::kOfficial, kKbit5);
    shape.runs = {{0, 3}, {6, 1}, {126, 3}}, shape.spare = 1;
    check_case(shape, Numerics::kOfficial, kKbit5);
    shape.spare = 0;
  }
}

#if DSV4_CUDA
// FP8 up to 64 tokens, bit planes up to 8.
TEST(AttentionIn, DryRunOfFew) {
  const std::unique_ptr<Device> hopper = Device::dry_run({.name = "H", .major = 9, .num_sms = 132});
  const Context context{.device = hopper.get()};
  const auto chosen = [&](int64_t t, const test::StoredAs& stored) {
    const Shape shape{.runs = {{3, t}}, .hidden = 512, .rank = 256, .row = {}, .index_dim = 128};
    const Case c(shape, Numerics::kOfficial, stored);
    return choose(attention_in, context, c.args).name;
  };
  for (const int64_t t : {32, 33, 64}) EXPECT_EQ(chosen(t, kFp8), "sm90_few") << t;
  EXPECT_EQ(chosen(65, kFp8), "parts");
  for (const int64_t t : {1, 2, 8}) {
    EXPECT_EQ(chosen(t, kKbit5), "sm90_few") << t;
    EXPECT_EQ(chosen(t, kKbit4), "sm90_few") << t;
  }
  EXPECT_EQ(chosen(9, kKbit5), "parts");
  // Where bits must not depend on the batch, any number, with temporaries of many tokens.
  const Context invariant{.need_batch_invariant = true, .device = hopper.get()};
  for (const int64_t t : {64, 65, 129, 700}) {
    const Case c({.runs = {{3, t}}, .hidden = 512, .rank = 256, .row = {}, .index_dim = 128},
                 Numerics::kOfficial, kFp8);
    EXPECT_EQ(choose(attention_in, invariant, c.args).name, "sm90_few") << t;
    EXPECT_GT(workspace_bytes(attention_in, invariant, c.args), t * 256) << t;
  }
  EXPECT_EQ(chosen(1, {WeightFormat::kKbit, 5}), "parts");
}
#endif

// The last has more tokens than the products finish a boundary for.
void check_boundary(const test::StoredAs& stored, std::initializer_list<int64_t> tokens) {
  for (const int64_t t : tokens) {
    for (const int ratio : {0, 4}) {
      Shape shape{.ratio = ratio,
                  .has_index = ratio > 0,
                  .select = ratio > 0,
                  .hidden = stored.bits > 0 ? 2048 : 1024,  // slabs of 256 columns in 8 ranks
                  .rank = 256,
                  .heads = 2,
                  .row = {},
                  .index_dim = 128,
                  .boundary = true};
      for (int64_t i = 0; i < t; ++i) shape.runs.push_back({2 + i, 1});
      Case c(shape, Numerics::kOfficial, stored);
      const TensorView single = c.arena.input(DType::kI32, {2});
      single.as<int32_t>()[0] = 0, single.as<int32_t>()[1] = 1;
      c.arena.keep_order(single);
      check_boundary_inside(
          attention_in.impls, Context{}, c.arena,
          {.name = fmt::format("attention_in t={} ratio={} {} boundary", t, ratio, name(stored)),
           .args = c.args,
           .one_token = [&](const AttentionInArgs& a,
                            int64_t i) { return one_token(a, i, shape, single); },
           .num_tokens = t});
    }
  }
}

TEST(AttentionIn, BoundaryInside) {
  check_boundary(kFp8, {3, 5});
}
TEST(AttentionIn, BoundaryInsideWithBitPlanes) {
  check_boundary(kKbit5, {1, 4, 5});
  check_boundary(kKbit4, {2});
}

TEST(AttentionIn, ReportsErrors) {
  const Shape shape{.runs = {{0, 5}}, .ratio = 4, .has_index = true, .select = true};
  Case c(shape, Numerics::kExact, kBf16);
  const auto message = [&](auto change) {
    AttentionInArgs args = c.args;
    change(args);
    return test::error_of([&] { attention_in({.numerics = Numerics::kExact}, args); });
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(message([](auto& a) { a.weights.wkv = a.weights.wq_a; }),
                  "wkv: want [128, 256], got [192, 256]"));
  EXPECT_TRUE(has(message([](auto& a) { a.entry_positions = a.positions; }),
                  "entry_positions: want [n=1] I32, got [5] I32"));
  EXPECT_TRUE(has(message([](auto& a) { a.state.layout.width = 64; }),
                  "compressor: entries of 64 for rows of 128"));
  EXPECT_TRUE(has(message([](auto& a) { a.state = {}; }), "an indexer with ratio 4"));
  EXPECT_TRUE(has(message([](auto& a) { a.index_weights = {}; }), "index_weights: want [t=5"));
  EXPECT_TRUE(has(message([](auto& a) { a.q = a.q.slice(2, 0, 64); }), "q must be contiguous"));
  EXPECT_TRUE(
      has(message([](auto& a) { a.index_first = 1; }), "index_q of 5 tokens from 1 on, of 5"));
  Case with({.runs = {{0, 1}}, .boundary = true}, Numerics::kExact, kBf16);
  with.args.x = c.args.x.slice(0, 0, 1);
  EXPECT_TRUE(has(test::error_of([&] { attention_in({.numerics = Numerics::kExact}, with.args); }),
                  "is not x of its boundary"));
}

}  // namespace
}  // namespace dsv4
