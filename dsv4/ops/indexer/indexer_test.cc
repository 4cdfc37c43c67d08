#include "dsv4/ops/indexer/indexer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dsv4/base/error.h"
#include "dsv4/ops/indexer/indexer_oracle.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using test::Arena;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Shape {
  int64_t t = 1, h = 64, n = 100;
  int width = 128, page_entries = 64;
  bool packed = true;
  DType dtype = DType::kBF16;
  bool exact_sums = false;  // all values are small integers: no rounding can differ
};

void set_key(const IndexPool& pool, int64_t row, const float* x) {
  const int64_t page = row / pool.page_entries, entry = row % pool.page_entries;
  if (pool.packed()) {
    pack_index_key(pool.layout, x, pool.pages.row<uint8_t>(page), pool.page_entries, entry);
  } else {
    std::copy_n(x, pool.layout.width, pool.pages.row<float>(page) + entry * pool.layout.width);
  }
}

// Two sequences with alternating pages, so that logical and physical order differ; tokens alternate
// between them. `visible` ranges from 0 to n.
IndexScoresArgs make_args(Arena& arena, Rng& rng, const Shape& shape) {
  const int64_t max_pages = ceil_div(shape.n, shape.page_entries);
  IndexPool keys{.layout = {shape.width}, .page_entries = shape.page_entries};
  const int64_t pool_pages = 2 * max_pages + 1;
  keys.pages =
      shape.packed
          ? arena.input(DType::kU8, {pool_pages, keys.layout.page_bytes(shape.page_entries)})
          : arena.input(DType::kF32, {pool_pages, int64_t{shape.page_entries} * shape.width});
  std::vector<float> x(static_cast<size_t>(shape.width));
  for (int64_t row = 0; row < pool_pages * shape.page_entries; ++row) {
    for (float& v : x) {
      v = static_cast<float>(shape.exact_sums ? static_cast<double>(rng.below(9) - 4)
                                              : rng.normal());
    }
    set_key(keys, row, x.data());
  }
  const TensorView q = arena.input(shape.dtype, {shape.t, shape.h, shape.width});
  const TensorView weights = arena.input(shape.dtype, {shape.t, shape.h});
  const TensorView pages = arena.input(DType::kI32, {2, max_pages});
  const TensorView sequence = arena.input(DType::kI32, {shape.t});
  const TensorView visible = arena.input(DType::kI32, {shape.t});
  test::fill_normal(q, rng);
  test::fill_normal(weights, rng, 0.01);
  for (int64_t i = 0; shape.exact_sums && i < q.numel(); ++i) {
    test::set_value(q, i, static_cast<double>(rng.below(7) - 3));
  }
  for (int64_t i = 0; shape.exact_sums && i < weights.numel(); ++i) {
    test::set_value(weights, i, std::ldexp(static_cast<double>(rng.below(15) - 7), -6));
  }
  for (int64_t i = 0; i < 2 * max_pages; ++i) {
    pages.as<int32_t>()[i % 2 * max_pages + i / 2] = static_cast<int32_t>(pool_pages - 1 - i);
  }
  for (int64_t i = 0; i < shape.t; ++i) {
    sequence.as<int32_t>()[i] = static_cast<int32_t>(i % 2);
    visible.as<int32_t>()[i] =
        static_cast<int32_t>(shape.t == 1 ? shape.n : shape.n * i / (shape.t - 1));
  }
  return {.q = q,
          .weights = weights,
          .weight_scale = shape.exact_sums ? 0.5f : 0.088388346f,
          .keys = keys,
          .pages = pages,
          .sequence = sequence,
          .visible = visible,
          .scores = arena.output(DType::kF32, {shape.t, shape.n})};
}

IndexScoresArgs one_query(const IndexScoresArgs& args, int64_t i) {
  IndexScoresArgs one = args;
  one.q = args.q.slice(0, i, i + 1);
  one.weights = args.weights.slice(0, i, i + 1);
  one.sequence = args.sequence.slice(0, i, i + 1);
  one.visible = args.visible.slice(0, i, i + 1);
  one.scores = args.scores.slice(0, i, i + 1);
  return one;
}

void check_scores(const Shape& shape, Numerics numerics) {
  Arena arena;
  Rng rng(static_cast<uint64_t>(shape.t * 31 + shape.h * 7 + shape.n));
  const IndexScoresArgs args = make_args(arena, rng, shape);
  const Context context{.numerics = numerics};
  test::OpCase<IndexScoresArgs> test{.name = fmt::format("index_scores t={} h={} n={} {}", shape.t,
                                                         shape.h, shape.n, name(numerics)),
                                     .args = args,
                                     .one_token = one_query,
                                     .num_tokens = shape.t};
  // With integers there is no difference. Otherwise an f32 dot product close to a bf16 tie may
  // round the other way (2^-8 of one head's term), and so may the sum (2^-8 of itself).
  test::Tolerance tolerance{.ulps = 0, .rel = numerics == Numerics::kExact ? 2e-6 : 0x1p-8};
  if (shape.exact_sums) tolerance.rel = 0;
  test.outputs = {{"scores", args.scores, index_scores_oracle(context, args), tolerance}};
  test.strided = [](IndexScoresArgs& a, test::StridedCopy& copy) {
    copy(a.q), copy(a.weights), copy(a.keys.pages), copy(a.pages), copy(a.scores);
  };
  check_op(index_scores.impls, context, arena, test);
}

TEST(IndexScores, AgreesWithOracle) {
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
    check_scores({.t = 3, .h = 64, .n = 300}, numerics);
    check_scores({.t = 1, .h = 64, .n = 1}, numerics);
    check_scores({.t = 0, .h = 2, .n = 5}, numerics);
    check_scores({.t = 4, .h = 1, .n = 131, .page_entries = 3}, numerics);
    check_scores({.t = 5, .h = 6, .n = 40, .width = 32, .page_entries = 16, .dtype = DType::kF32},
                 numerics);
    check_scores({.t = 4, .h = 3, .n = 50, .width = 20, .page_entries = 7, .packed = false},
                 numerics);
  }
}

TEST(IndexScores, ExactSumsRoundLikeTheReference) {
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
    check_scores({.t = 4, .h = 64, .n = 200, .exact_sums = true}, numerics);
  }
}

TEST(IndexScores, ReportsErrors) {
  Arena arena;
  Rng rng(1);
  const auto message = [&](auto change) {
    IndexScoresArgs args = make_args(arena, rng, {.t = 2, .h = 2, .n = 70});
    change(args);
    return test::error_of([&] { index_scores(Context{}, args); });
  };
  const auto set = [](const ConstTensorView& view, int64_t i, int32_t value) {
    const_cast<int32_t*>(view.as<int32_t>())[i] = value;
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(message([&](auto& a) { set(a.visible, 1, 71); }), "visible[1]=71 of 70 scores"));
  EXPECT_TRUE(has(message([&](auto& a) { set(a.sequence, 1, 2); }), "sequence[1]=2 of 2"));
  EXPECT_TRUE(has(message([&](auto& a) { set(a.pages, 3, 5); }), "pages[1, 1]=5 of a pool of 5"));
  EXPECT_TRUE(has(message([&](auto& a) { set(a.pages, 2, -1); }), "pages[1, 0]=-1"));
  EXPECT_TRUE(
      has(message([&](auto& a) { a.pages = a.pages.slice(1, 0, 1); }), "needs 2 pages of 1"));
  EXPECT_TRUE(has(message([&](auto& a) { a.keys.layout.width = 64; }), "keys"));
}

// Scores are generated by `draw`; visible ranges over the row.
template <class Draw>
void check_top_k(int64_t t, int64_t n, int64_t k, const Draw& draw, int page_entries = 0) {
  Arena arena;
  Rng rng(static_cast<uint64_t>(n * 1000 + k));
  const TensorView scores = arena.input(DType::kF32, {t, n}),
                   visible = arena.input(DType::kI32, {t});
  for (int64_t i = 0; i < scores.numel(); ++i)
    scores.as<float>()[i] = static_cast<float>(draw(rng));
  for (int64_t i = 0; i < t; ++i)
    visible.as<int32_t>()[i] = static_cast<int32_t>(n - (n * i) / (2 * t));
  TopKArgs args{.scores = scores, .visible = visible, .indices = arena.output(DType::kI32, {t, k})};
  if (page_entries > 0) {
    const TensorView pages = arena.input(DType::kI32, {2, ceil_div(n, page_entries)}),
                     sequence = arena.input(DType::kI32, {t});
    test::fill_ints(pages, rng, 0, 1000);
    test::fill_ints(sequence, rng, 0, 2);
    args.pages = pages;
    args.sequence = sequence;
    args.page_entries = page_entries;
  }
  test::OpCase<TopKArgs> test{
      .name = fmt::format("top_k {} of {}", k, n), .args = args, .num_tokens = t};
  test.outputs = {{"indices", args.indices, top_k_oracle(args), {.ulps = 0}}};
  test.one_token = [](const TopKArgs& a, int64_t i) {
    TopKArgs one = a;
    one.scores = a.scores.slice(0, i, i + 1);
    one.visible = a.visible.slice(0, i, i + 1);
    one.indices = a.indices.slice(0, i, i + 1);
    if (!a.pages.empty()) one.sequence = a.sequence.slice(0, i, i + 1);
    return one;
  };
  test.strided = [](TopKArgs& a, test::StridedCopy& copy) {
    copy(a.scores), copy(a.pages), copy(a.indices);
  };
  check_op(top_k.impls, Context{}, arena, test);
}

TEST(TopK, AgreesWithSorting) {
  const auto normal = [](Rng& rng) { return rng.normal(); };
  const auto wide = [](Rng& rng) { return rng.normal() * std::exp2(rng.uniform(-140, 120)); };
  const auto bf16 = [](Rng& rng) { return round_to_bf16(static_cast<float>(rng.normal())); };
  const auto few = [](Rng& rng) { return static_cast<double>(rng.below(4)) - 2; };
  const auto constant = [](Rng&) { return -0.125; };
  const auto zeros = [](Rng& rng) { return rng.uniform() < 0.5 ? 0.0 : -0.0; };
  const auto holes = [](Rng& rng) {
    const double u = rng.uniform();
    return u < 0.3 ? -kInfinity : u < 0.5 ? std::nan("") : u < 0.52 ? kInfinity : rng.normal();
  };
  for (const int64_t n : {0, 1, 2, 65, 700}) {
    for (const int64_t k : {0, 1, 64, 512}) {
      check_top_k(3, n, k, normal);
      check_top_k(3, n, k, wide);
      check_top_k(3, n, k, bf16);
      check_top_k(3, n, k, few);
      check_top_k(2, n, k, constant);
      check_top_k(2, n, k, zeros);
      check_top_k(3, n, k, holes);
    }
  }
  check_top_k(0, 10, 3, normal);
  check_top_k(2, 20000, 512, bf16);
  for (const int page_entries : {1, 7, 64}) check_top_k(5, 700, 64, bf16, page_entries);
}

TEST(TopK, ReportsErrors) {
  Arena arena;
  const TensorView visible = arena.input(DType::kI32, {1});
  visible.as<int32_t>()[0] = 6;
  const TopKArgs args{.scores = arena.input(DType::kF32, {1, 5}),
                      .visible = visible,
                      .indices = arena.output(DType::kI32, {1, 2})};
  EXPECT_NE(test::error_of([&] { top_k(Context{}, args); }).find("visible[0]=6 of 5 scores"),
            std::string::npos);
}

}  // namespace
}  // namespace dsv4
