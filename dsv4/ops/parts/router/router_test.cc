#include "dsv4/ops/parts/router/router.h"

#include "dsv4/base/error.h"
#include "dsv4/ops/parts/router/router_case.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using test::Arena;

RouterArgs one_token(const RouterArgs& a, int64_t i) {
  RouterArgs one = a;
  one.logits = a.logits.slice(0, i, i + 1);
  if (!a.ids.empty()) one.ids = a.ids.slice(0, i, i + 1);
  one.experts = a.experts.slice(0, i, i + 1);
  one.weights = a.weights.slice(0, i, i + 1);
  return one;
}

void check_router(Arena& arena, const RouterArgs& args, const std::string& name) {
  const RouterAnswer want = router_oracle(args);
  test::OpCase<RouterArgs> test{.name = name,
                                .args = args,
                                // exp, log1p and sqrt of the C library are within 1 ulp each; the
                                // sum of k and the quotient add at most k/2 + 2.
                                .outputs = {{"experts", args.experts, want.experts, {.ulps = 0}},
                                            {"weights", args.weights, want.weights, {.ulps = 8}}},
                                .one_token = one_token,
                                .num_tokens = args.logits.dim(0)};
  test.strided = [](RouterArgs& a, test::StridedCopy& copy) {
    copy(a.logits), copy(a.tid2eid), copy(a.experts), copy(a.weights);
  };
  check_op(router.impls, Context{}, arena, test);
}

TEST(Router, LearnedAgreesWithOracle) {
  for (const int64_t e : {1, 6, 60, 256, 385}) {
    for (const int64_t t : {0, 1, 7}) {
      for (const bool normalize : {true, false}) {
        Arena arena;
        Rng rng(static_cast<uint64_t>(e * 10 + t));
        RouterArgs args = test::random_router(arena, rng, t, e, std::min<int64_t>(e, 6));
        args.normalize = normalize;
        check_router(arena, args, fmt::format("learned e={} t={}", e, t));
        args.bias = {};
        check_router(arena, args, fmt::format("learned without bias e={} t={}", e, t));
      }
    }
  }
}

TEST(Router, HashAgreesWithOracle) {
  for (const DType dtype : {DType::kI32, DType::kI64}) {
    Arena arena;
    Rng rng(3);
    const TensorView logits = arena.input(DType::kF32, {9, 32});
    const TensorView table = arena.input(dtype, {50, 6}), ids = arena.input(DType::kI32, {9});
    test::fill_normal(logits, rng, 3.0);
    test::fill_ints(table, rng, 0, 32);  // with repeats within a row
    test::fill_ints(ids, rng, 0, 50);
    check_router(arena,
                 {.logits = logits,
                  .tid2eid = table,
                  .ids = ids,
                  .route_scale = 2.5f,
                  .experts = arena.output(DType::kI32, {9, 6}),
                  .weights = arena.output(DType::kF32, {9, 6})},
                 "hash");
  }
}

// docs/spec/dsv4.md B.6: equal logits tie to the lowest ids; six equal scores have weights of 0.25
// on Flash.
TEST(Router, EqualScores) {
  Arena arena;
  const TensorView logits = arena.input(DType::kF32, {1, 16});
  test::set_value(logits, 0, -1);
  const RouterArgs args{.logits = logits,
                        .route_scale = 1.5f,
                        .experts = arena.output(DType::kI32, {1, 6}),
                        .weights = arena.output(DType::kF32, {1, 6})};
  router(Context{}, args);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(args.experts.as<int32_t>()[i], i + 1);
    EXPECT_FLOAT_EQ(args.weights.as<float>()[i], 0.25f);
  }
  RouterArgs raw = args;
  raw.normalize = false, raw.route_scale = 1;
  router(Context{}, raw);
  EXPECT_NEAR(raw.weights.as<float>()[0], 0.832555, 1e-6);
}

// The bias affects the selection only; the weight is unbiased.
TEST(Router, BiasSelectsOnly) {
  Arena arena;
  const TensorView logits = arena.input(DType::kF32, {1, 4}), bias = arena.input(DType::kF32, {4});
  test::set_value(bias, 3, 5);
  const RouterArgs args{.logits = logits,
                        .bias = bias,
                        .experts = arena.output(DType::kI32, {1, 2}),
                        .weights = arena.output(DType::kF32, {1, 2})};
  router(Context{}, args);
  EXPECT_EQ(args.experts.as<int32_t>()[0], 3);
  EXPECT_EQ(args.experts.as<int32_t>()[1], 0);
  EXPECT_FLOAT_EQ(args.weights.as<float>()[0], 0.5f);
}

TEST(Router, VeryNegativeLogitsKeepTheirRatio) {
  Arena arena;
  const TensorView logits = arena.input(DType::kF32, {1, 2});
  test::set_value(logits, 0, -160);  // e^-160 underflows in f32
  test::set_value(logits, 1, -162);
  const RouterArgs args{.logits = logits,
                        .experts = arena.output(DType::kI32, {1, 2}),
                        .weights = arena.output(DType::kF32, {1, 2})};
  router(Context{}, args);  // sqrt(e^-160) : sqrt(e^-162) = e : 1
  EXPECT_NEAR(args.weights.as<float>()[0], 0.7310586, 1e-6);
}

TEST(Router, RefusesNaN) {
  Arena arena;
  const TensorView logits = arena.input(DType::kF32, {3, 4}), bias = arena.input(DType::kF32, {4});
  const RouterArgs args{.logits = logits,
                        .bias = bias,
                        .experts = arena.output(DType::kI32, {3, 2}),
                        .weights = arena.output(DType::kF32, {3, 2})};
  router(Context{}, args);
  logits.row<float>(2)[3] = std::nanf("");
  EXPECT_EQ(test::error_of([&] { router(Context{}, args); }),
            "a logit or a bias of token 2 is nan: it has no top 2 experts");
  logits.row<float>(2)[3] = 0;
  bias.as<float>()[0] = std::nanf("");
  EXPECT_NE(test::error_of([&] { router(Context{}, args); }).find("it has no top 2 experts"),
            std::string::npos);
}

TEST(Router, ReportsErrors) {
  Arena arena;
  const TensorView ids = arena.input(DType::kI32, {2}), table = arena.input(DType::kI64, {5, 1});
  RouterArgs args{.logits = arena.input(DType::kF32, {2, 4}),
                  .tid2eid = table,
                  .ids = ids,
                  .experts = arena.output(DType::kI32, {2, 1}),
                  .weights = arena.output(DType::kF32, {2, 1})};
  const auto error = [&] { return test::error_of([&] { router(Context{}, args); }); };
  test::set_value(ids, 1, 5);
  EXPECT_NE(error().find("ids[1] is 5, the table has 5 rows"), std::string::npos);
  test::set_value(ids, 1, 2);
  test::set_value(table, 2, 4);
  EXPECT_NE(error().find("tid2eid[2, 0] is 4, there are 4 experts"), std::string::npos);
  args.tid2eid = {};
  args.experts = arena.output(DType::kI32, {2, 6});
  args.weights = arena.output(DType::kF32, {2, 6});
  EXPECT_NE(error().find("top-6 of 4 experts"), std::string::npos);
}

}  // namespace
}  // namespace dsv4
