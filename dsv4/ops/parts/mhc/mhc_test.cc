#include "dsv4/ops/parts/mhc/mhc.h"

#include <cmath>

#include "dsv4/base/error.h"
#include "dsv4/ops/parts/mhc/mhc_case.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using test::Arena;

// Sums have about log2 of their length + 4 roundings of the largest term; the gates add an absolute
// error of the mixes (dot products of m * d terms) of about 1e-6. bf16 outputs are rounded once.
test::Tolerance tolerance(DType dtype) {
  return {.ulps = dtype == DType::kF32 ? 4.0 : 0.51, .rel = 5e-6};
}

void check_hc_pre(int64_t t, int64_t m, int64_t d, DType dtype) {
  Arena arena;
  Rng rng(static_cast<uint64_t>(t * 100 + m * 10 + d));
  const HcPreArgs args = test::random_hc_pre(arena, rng, t, m, d, dtype);
  const HcPreWant want = hc_pre_oracle(args);
  test::OpCase<HcPreArgs> test{
      .name = fmt::format("hc_pre t={} m={} d={}", t, m, d), .args = args, .num_tokens = t};
  test.outputs = {{"out", args.out, want.out, tolerance(dtype)},
                  {"post", args.post, want.post, {.ulps = 4, .abs = 5e-6}},
                  {"comb", args.comb, want.comb, {.ulps = 4, .abs = 5e-6}}};
  test.one_token = [](const HcPreArgs& a, int64_t i) {
    HcPreArgs one = a;
    one.streams = a.streams.slice(0, i, i + 1);
    one.out = a.out.slice(0, i, i + 1);
    one.post = a.post.slice(0, i, i + 1);
    one.comb = a.comb.slice(0, i, i + 1);
    return one;
  };
  test.strided = [](HcPreArgs& a, test::StridedCopy& copy) {
    copy(a.streams), copy(a.fn), copy(a.out), copy(a.post), copy(a.comb);
  };
  check_op(hc_pre.impls, Context{}, arena, test);
}

void check_hc_post(int64_t t, int64_t m, int64_t d, DType y_dtype, DType dtype) {
  Arena arena;
  Rng rng(static_cast<uint64_t>(t * 100 + m * 10 + d));
  const HcPostArgs args = test::random_hc_post(arena, rng, t, m, d, y_dtype, dtype);
  test::OpCase<HcPostArgs> test{
      .name = fmt::format("hc_post t={} m={} d={}", t, m, d), .args = args, .num_tokens = t};
  test.outputs = {{"streams", args.streams, hc_post_oracle(args), tolerance(dtype)}};
  test.one_token = [](const HcPostArgs& a, int64_t i) {
    return HcPostArgs{.y = a.y.slice(0, i, i + 1),
                      .post = a.post.slice(0, i, i + 1),
                      .comb = a.comb.slice(0, i, i + 1),
                      .streams = a.streams.slice(0, i, i + 1)};
  };
  test.strided = [](HcPostArgs& a, test::StridedCopy& copy) {
    copy(a.y), copy(a.post), copy(a.comb), copy(a.streams);
  };
  check_op(hc_post.impls, Context{}, arena, test);
}

void check_hc_head(int64_t t, int64_t m, int64_t d, DType dtype) {
  Arena arena;
  Rng rng(static_cast<uint64_t>(t * 100 + m * 10 + d));
  const HcHeadArgs args = test::random_hc_head(arena, rng, t, m, d, dtype);
  test::OpCase<HcHeadArgs> test{
      .name = fmt::format("hc_head t={} m={} d={}", t, m, d), .args = args, .num_tokens = t};
  test.outputs = {{"out", args.out, hc_head_oracle(args), tolerance(dtype)}};
  test.one_token = [](const HcHeadArgs& a, int64_t i) {
    HcHeadArgs one = a;
    one.streams = a.streams.slice(0, i, i + 1);
    one.out = a.out.slice(0, i, i + 1);
    return one;
  };
  test.strided = [](HcHeadArgs& a, test::StridedCopy& copy) {
    copy(a.streams), copy(a.fn), copy(a.out);
  };
  check_op(hc_head.impls, Context{}, arena, test);
}

void check_hc_mean(int64_t t, int64_t m, int64_t d, DType dtype) {
  Arena arena;
  Rng rng(static_cast<uint64_t>(t * 100 + m * 10 + d));
  const HcMeanArgs args = test::random_hc_mean(arena, rng, t, m, d, dtype);
  test::OpCase<HcMeanArgs> test{
      .name = fmt::format("hc_mean t={} m={} d={}", t, m, d), .args = args, .num_tokens = t};
  test.outputs = {{"out", args.out, hc_mean_oracle(args), tolerance(dtype)}};
  test.one_token = [](const HcMeanArgs& a, int64_t i) {
    return HcMeanArgs{.streams = a.streams.slice(0, i, i + 1), .out = a.out.slice(0, i, i + 1)};
  };
  test.strided = [](HcMeanArgs& a, test::StridedCopy& copy) { copy(a.streams), copy(a.out); };
  check_op(hc_mean.impls, Context{}, arena, test);
}

TEST(Mhc, AgreesWithOracle) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t m : {2, 3, 4, 8}) {
      for (const int64_t t : {0, 1, 6}) {
        for (const int64_t d : {1, 133}) {
          check_hc_pre(t, m, d, dtype);
          check_hc_post(t, m, d, dtype, dtype);
          check_hc_post(t, m, d, DType::kF32, dtype);
          check_hc_head(t, m, d, dtype);
          check_hc_mean(t, m, d, dtype);
        }
      }
    }
    check_hc_pre(9, 4, 1200, dtype);
    check_hc_post(9, 4, 1200, DType::kF32, dtype);
    check_hc_mean(9, 4, 1200, dtype);
    check_hc_mean(3, 1, 40, dtype);
  }
}

// docs/spec/dsv4.md B.2. One stream value is not zero, so mix_i = fn_i0 * x * rho with x * rho =
// sqrt(m * d): fn contains the mixes of the spec divided by it. norm_eps is 0 to keep rho exact.
struct SpecVector {
  Arena arena;
  HcPreArgs args;

  SpecVector() {
    const TensorView streams = arena.input(DType::kF32, {1, 4, 4});
    const TensorView fn = arena.input(DType::kF32, {24, 16}), base = arena.input(DType::kF32, {24});
    const TensorView scale = arena.input(DType::kF32, {3});
    streams.as<float>()[0] = 2.f;
    for (int i = 0; i < 24; ++i) {
      fn.as<float>()[i * 16] = static_cast<float>(1.5 * std::sin(0.7 * i + 0.3) / 4);
      base.as<float>()[i] = static_cast<float>(0.1 * std::cos(i));
    }
    scale.as<float>()[0] = 0.5f, scale.as<float>()[1] = 0.25f, scale.as<float>()[2] = 0.8f;
    args = {.streams = streams,
            .fn = fn,
            .base = base,
            .scale = scale,
            .norm_eps = 0.f,
            .out = arena.output(DType::kF32, {1, 4}),
            .post = arena.output(DType::kF32, {1, 4}),
            .comb = arena.output(DType::kF32, {1, 4, 4})};
    hc_pre(Context{}, args);
  }
};

TEST(HcPre, SpecVector) {
  const SpecVector spec;
  EXPECT_NEAR(spec.args.out.as<float>()[0], 2 * 0.5797249, 1e-6);
  const double post[] = {0.9751193, 0.8997972, 0.8655408, 0.8727411};
  const double comb[] = {0.0629444, 0.1903015, 0.3724137, 0.3743394, 0.4770970, 0.3201130,
                         0.1382842, 0.0645047, 0.0449721, 0.1284291, 0.3267784, 0.4998194,
                         0.4149855, 0.3611554, 0.1625227, 0.0613354};
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(spec.args.post.as<float>()[i], post[i], 1e-6);
  for (int i = 0; i < 16; ++i) EXPECT_NEAR(spec.args.comb.as<float>()[i], comb[i], 1e-6);
}

// All four gates of the spec vector, through hc_head: X_j is the j-th unit vector, out is pre.
TEST(HcHead, SpecVectorOfPre) {
  Arena arena;
  const TensorView streams = arena.input(DType::kF32, {1, 4, 4});
  const TensorView fn = arena.input(DType::kF32, {4, 16}), base = arena.input(DType::kF32, {4});
  const TensorView scale = arena.input(DType::kF32, {1}), out = arena.output(DType::kF32, {1, 4});
  for (int j = 0; j < 4; ++j) {
    streams.as<float>()[j * 4 + j] = 1.f;  // mean of squares 1/4, rho = 2
    fn.as<float>()[j * 16] = static_cast<float>(1.5 * std::sin(0.7 * j + 0.3) / 2);
    base.as<float>()[j] = static_cast<float>(0.1 * std::cos(j));
  }
  scale.as<float>()[0] = 0.5f;
  hc_head(
      Context{},
      {.streams = streams, .fn = fn, .base = base, .scale = scale, .norm_eps = 0.f, .out = out});
  const double pre[] = {0.5797249, 0.6648845, 0.6686617, 0.6005128};
  for (int j = 0; j < 4; ++j) EXPECT_NEAR(out.as<float>()[j], pre[j], 1e-6);
}

// The sum runs over the first index of comb (docs/spec/dsv4.md B.2): with unit streams, X'_0 shows
// column 0.
TEST(HcPost, SumsOverTheFirstIndex) {
  const SpecVector spec;
  Arena arena;
  const TensorView streams = arena.inout(DType::kF32, {1, 4, 5}),
                   y = arena.input(DType::kF32, {1, 5});
  for (int j = 0; j < 4; ++j) streams.as<float>()[j * 5 + j] = 1.f;
  y.as<float>()[4] = 1.f;
  hc_post(Context{}, {.y = y, .post = spec.args.post, .comb = spec.args.comb, .streams = streams});
  const double first[] = {0.0629444, 0.4770970, 0.0449721, 0.4149855, 0.9751193};
  for (int c = 0; c < 5; ++c) EXPECT_NEAR(streams.as<float>()[c], first[c], 1e-6);
}

TEST(HcPre, SumsOfCombStayJustBelowOne) {
  const SpecVector spec;
  const float* comb = spec.args.comb.as<float>();
  for (int k = 0; k < 4; ++k) {
    EXPECT_NEAR(comb[k] + comb[4 + k] + comb[8 + k] + comb[12 + k], 0.999999, 3e-7);
    EXPECT_NEAR(comb[4 * k] + comb[4 * k + 1] + comb[4 * k + 2] + comb[4 * k + 3], 0.999999, 3e-7);
  }
}

TEST(Mhc, ReportsErrors) {
  SpecVector spec;
  const auto message = [](const HcPreArgs& args) {
    return test::error_of([&] { hc_pre(Context{}, args); });
  };
  HcPreArgs args = spec.args;
  args.fn = spec.args.fn.slice(0, 0, 23);
  EXPECT_EQ(message(args), "fn: want [24, 16] F32, got [23, 16] F32");
  args = spec.args;
  args.sinkhorn_iters = 0;
  EXPECT_NE(message(args).find("sinkhorn_iters=0"), std::string::npos);
  args.streams = spec.arena.input(DType::kF32, {1, 9, 4});
  EXPECT_NE(message(args).find("9 streams, at most 8"), std::string::npos);
}

}  // namespace
}  // namespace dsv4
