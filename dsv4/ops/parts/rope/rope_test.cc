#include "dsv4/ops/parts/rope/rope.h"

#include <cmath>

#include "dsv4/base/error.h"
#include "dsv4/ops/parts/rope/rope_case.h"
#include "dsv4/tensor/buffer.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using test::Arena;

// docs/spec/dsv4.md B.1: base 160000 with YaRN.
constexpr double kYarnTable[32] = {
    1.000000000e+00, 6.876560450e-01, 4.728707969e-01, 3.251724541e-01, 2.236067951e-01,
    1.537645608e-01, 1.057371274e-01, 7.271077484e-02, 5.000000075e-02, 3.438280150e-02,
    2.364354022e-02, 1.625862345e-02, 1.118034031e-02, 7.688228041e-03, 5.286856089e-03,
    3.635538509e-03, 2.265624935e-03, 1.396801323e-03, 8.496897062e-04, 5.080819828e-04,
    2.969777852e-04, 1.681799913e-04, 9.086784121e-05, 4.544423064e-05, 1.953124956e-05,
    5.372312899e-06, 3.694303132e-06, 2.540409923e-06, 1.746928092e-06, 1.201285613e-06,
    8.260713003e-07, 5.680528830e-07};

TEST(RopeFrequencies, PlainTableOfTheSpec) {
  constexpr double kDecade[8] = {1,           7.498942e-1, 5.623413e-1, 4.216965e-1,
                                 3.162278e-1, 2.371374e-1, 1.778279e-1, 1.333521e-1};
  const std::vector<float> freqs = rope_frequencies(64, 10000, {});
  ASSERT_EQ(freqs.size(), 32u);
  for (size_t i = 0; i < 32; ++i) {
    const auto f = static_cast<double>(freqs[i]);
    // Seven printed digits; against the formula, three roundings: exponent, power, reciprocal.
    EXPECT_NEAR(f / (kDecade[i % 8] * std::pow(10.0, -static_cast<double>(i / 8))), 1, 4e-7) << i;
    EXPECT_NEAR(f / std::pow(10.0, -static_cast<double>(i) / 8), 1, 2 * 0x1p-23) << i;
  }
}

TEST(RopeFrequencies, YarnTableOfTheSpec) {
  const std::vector<float> freqs = rope_frequencies(64, 160000, {.on = true});
  ASSERT_EQ(freqs.size(), 32u);
  for (size_t i = 0; i < 32; ++i) {
    // One or two ulps of f32, as stated with the table, and half a unit of its tenth digit.
    const double allowed = 2 * test::ulp(DType::kF32, kYarnTable[i]) + 5e-10 * kYarnTable[i];
    EXPECT_NEAR(static_cast<double>(freqs[i]), kYarnTable[i], allowed) << i;
  }
}

TEST(RopeFrequencies, YarnKeepsHighAndDividesLowFrequencies) {
  const std::vector<float> plain = rope_frequencies(64, 160000, {});
  const std::vector<float> yarn = rope_frequencies(64, 160000, {.on = true});
  for (size_t i = 0; i <= 15; ++i) EXPECT_EQ(yarn[i], plain[i]) << i;
  for (size_t i = 16; i < 25; ++i) EXPECT_TRUE(yarn[i] < plain[i] && yarn[i] > plain[i] / 16) << i;
  for (size_t i = 25; i < 32; ++i) EXPECT_EQ(yarn[i], plain[i] / 16) << i;
}

TEST(RopeFrequencies, RampEndsAreRoundedOutward) {
  // The ends are 16.58 and 25.84: rounded down to 16 and up to 26.
  const std::vector<float> plain = rope_frequencies(64, 160000, {});
  const std::vector<float> yarn =
      rope_frequencies(64, 160000, {.on = true, .original_positions = 100'000});
  EXPECT_EQ(yarn[16], plain[16]);
  EXPECT_NEAR(yarn[17] / plain[17], 1 - 0.1 * 15 / 16, 1e-6);
  EXPECT_NEAR(yarn[25] / plain[25], 1 - 0.9 * 15 / 16, 1e-6);
  EXPECT_EQ(yarn[26], plain[26] / 16);
}

TEST(RopeFrequencies, SmallModelsAndEmptyRamps) {
  EXPECT_TRUE(rope_frequencies(0, 10000, {.on = true}).empty());
  EXPECT_EQ(rope_frequencies(2, 10000, {}), std::vector<float>{1.f});
  // With an original context shorter than one turn, the whole ramp is at or below pair 0.
  const YarnParams tiny{.on = true, .factor = 4, .original_positions = 4};
  const std::vector<float> plain = rope_frequencies(8, 100, {});
  const std::vector<float> yarn = rope_frequencies(8, 100, tiny);
  EXPECT_EQ(yarn[0], plain[0]);
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(yarn[i], plain[i] / 4) << i;
}

TEST(RopeFrequencies, ReportsErrors) {
  EXPECT_NE(test::error_of([] { rope_frequencies(7, 10000, {}); }).find("dim=7"),
            std::string::npos);
  EXPECT_NE(test::error_of([] { rope_frequencies(8, 1, {}); }).find("base=1"), std::string::npos);
  EXPECT_NE(test::error_of([] {
              rope_frequencies(8, 10000, {.on = true, .factor = 0});
            }).find("factor=0"),
            std::string::npos);
}

void check_rope(const test::RopeShape& shape, uint64_t seed) {
  Arena arena;
  Rng rng(seed);
  const RopeArgs args = test::random_rope(arena, rng, shape);
  test::OpCase<RopeArgs> test{
      .name = fmt::format("rope {}x{}x{} pairs {}", shape.t, shape.h, shape.d, shape.pairs),
      .args = args,
      .num_tokens = shape.t};
  // cos, sin, two products and their sum are rounded to f32: 2.5 half-ulps of |(a, b)|, which is at
  // most 15 here (7 sigma), with any cancellation. The store rounds once more.
  test.outputs = {{"x", args.x, rope_oracle(args), {.ulps = 0.51, .abs = 15 * 3 * 0x1p-24}}};
  test.one_token = [](const RopeArgs& a, int64_t i) {
    RopeArgs one = a;
    one.x = a.x.slice(0, i, i + 1);
    one.positions = a.positions.slice(0, i, i + 1);
    return one;
  };
  test.strided = [](RopeArgs& a, test::StridedCopy& copy) {
    copy(a.x), copy(a.positions), copy(a.freqs);
  };
  check_op(rope.impls, Context{}, arena, test);
}

TEST(Rope, AgreesWithOracle) {
  uint64_t seed = 1;
  using Shape = test::RopeShape;
  for (Shape shape :
       {Shape{0, 1, 64, 32}, Shape{1, 1, 64, 32}, Shape{3, 64, 512, 32}, Shape{5, 2, 128, 32},
        Shape{2, 3, 7, 2}, Shape{4, 1, 2, 1}, Shape{2, 0, 8, 4}, Shape{2, 5, 9, 0}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const bool inverse : {false, true}) {
        shape.dtype = dtype, shape.inverse = inverse;
        check_rope(shape, seed++);
      }
    }
  }
}

// Rotates [1, 1, d] at `position` with the plain table.
void rotate(const TensorView& x, int32_t position, bool inverse) {
  const std::vector<float> table = rope_frequencies(static_cast<int>(x.dim(2)), 10000, {});
  const Buffer freqs(DType::kF32, {x.dim(2) / 2}), positions(DType::kI32, {1});
  std::copy(table.begin(), table.end(), freqs.as<float>());
  positions.as<int32_t>()[0] = position;
  rope(Context{}, {.x = x, .positions = positions, .freqs = freqs, .inverse = inverse});
}

TEST(Rope, PositionZeroIsIdentityAndInverseUndoes) {
  const Buffer x(DType::kF32, {1, 1, 64}), before(DType::kF32, {1, 1, 64});
  Rng rng(7);
  test::fill_normal(before, rng);
  std::copy_n(before.as<float>(), 64, x.as<float>());
  rotate(x, 0, false);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(x.as<float>()[i], before.as<float>()[i]);
  rotate(x, 1'048'575, false);
  EXPECT_NE(x.as<float>()[0], before.as<float>()[0]);
  rotate(x, 1'048'575, true);
  for (int i = 0; i < 64; ++i) EXPECT_NEAR(x.as<float>()[i], before.as<float>()[i], 2e-6);
}

TEST(Rope, PairsAreAdjacentAndRotateCounterClockwise) {
  const Buffer x(DType::kF32, {1, 1, 4});
  x.as<float>()[0] = 1;
  x.as<float>()[3] = 1;
  rotate(x, 1, false);  // angles 1 and 0.01
  const double want[4] = {0.5403023058681398, 0.8414709848078965, -0.009999833334166664,
                          0.9999500004166653};
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(static_cast<double>(x.as<float>()[i]), want[i], 1e-7);
}

TEST(Rope, RotatesStridedHeadsInPlaceOnly) {
  // Heads [1, 3) of 4 and dims [2, 10) of 12, as a slice: compared with a dense copy.
  const Buffer whole(DType::kF32, {3, 4, 12}), before(DType::kF32, {3, 4, 12});
  const Buffer dense(DType::kF32, {3, 2, 8});
  Rng rng(3);
  test::fill_normal(before, rng);
  std::copy_n(before.as<float>(), whole.view().numel(), whole.as<float>());
  const auto index = [](int64_t t, int64_t h, int64_t c) { return (t * 4 + h) * 12 + c; };
  for (int64_t i = 0; i < 48; ++i) {
    dense.as<float>()[i] = before.as<float>()[index(i / 16, 1 + i / 8 % 2, 2 + i % 8)];
  }
  const Buffer freqs(DType::kF32, {3}), positions(DType::kI32, {3});
  test::fill_uniform(freqs, rng, 0.1, 1);
  test::fill_ints(positions, rng, 1, 1000);
  RopeArgs args{.x = dense, .positions = positions, .freqs = freqs};
  rope(Context{}, args);
  args.x = whole.view().slice(1, 1, 3).slice(2, 2, 10);
  rope(Context{}, args);
  for (int64_t i = 0; i < whole.view().numel(); ++i) {
    const int64_t t = i / 48, h = i / 12 % 4, c = i % 12;
    const bool inside = h >= 1 && h < 3 && c >= 2 && c < 10;
    const float want =
        inside ? dense.as<float>()[(t * 2 + h - 1) * 8 + c - 2] : before.as<float>()[i];
    EXPECT_EQ(whole.as<float>()[i], want) << t << " " << h << " " << c;
  }
}

TEST(Rope, ReportsErrors) {
  Arena arena;
  RopeArgs args{.x = arena.inout(DType::kF32, {2, 3, 8}),
                .positions = arena.input(DType::kI32, {3}),
                .freqs = arena.input(DType::kF32, {5})};
  EXPECT_EQ(test::error_of([&] { rope(Context{}, args); }),
            "positions: want [t=2] I32, got [3] I32");
  args.positions = arena.input(DType::kI32, {2});
  EXPECT_NE(test::error_of([&] { rope(Context{}, args); }).find("5 pairs do not fit d=8"),
            std::string::npos);
}

}  // namespace
}  // namespace dsv4
