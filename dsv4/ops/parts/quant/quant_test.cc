#include "dsv4/ops/parts/quant/quant.h"

#include <cmath>

#include "dsv4/base/error.h"
#include "dsv4/ops/parts/quant/quant_case.h"
#include "dsv4/tensor/buffer.h"
#include "tests/harness/mirrored.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using test::Arena;

constexpr test::Tolerance kExact{.ulps = 0, .cosine = 1e-12};

// Groups with magnitudes of 2^-40 .. 2^40, and the special cases.
void fill(const TensorView& x, Rng& rng) {
  const int64_t n = x.dim(1);
  for (int64_t r = 0; r < x.dim(0); ++r) {
    const double sigma = std::ldexp(1.0, static_cast<int>(rng.below(81)) - 40);
    for (int64_t i = 0; i < n; ++i) test::set_value(x, r * n + i, sigma * rng.normal());
    if (n > 4 && r % 3 == 0) {
      const double most = std::ldexp(r % 2 == 0 ? 448 : 6, static_cast<int>(rng.below(20)) - 10);
      for (int64_t i = 0; i < n; ++i) test::set_value(x, r * n + i, most * rng.uniform(-1, 1));
      test::set_value(x, r * n + n - 1, -most);  // the largest magnitude, exactly at a power of two
    }
    if (n > 4 && r % 5 == 4) {
      for (int64_t i = 0; i < n; ++i) test::set_value(x, r * n + i, i == 2 ? 1e-30 : 0.0);
    }
  }
}

void check_quantize_q8(int64_t t, int64_t k, int group, DType dtype) {
  Arena arena;
  Rng rng(static_cast<uint64_t>(t * 10007 + k + group));
  const TensorView x = arena.input(dtype, {t, k});
  fill(x, rng);
  const QuantizeQ8Args args = test::quantize_q8_of(arena, x, group);
  const QuantizeQ8Want want = quantize_q8_oracle(args);
  test::OpCase<QuantizeQ8Args> test{
      .name = fmt::format("quantize_q8 {}x{} by {}", t, k, group), .args = args, .num_tokens = t};
  test.outputs = {{"codes", args.codes, want.codes, kExact},
                  {"scales", args.scales, want.scales, kExact}};
  test.one_token = [](const QuantizeQ8Args& a, int64_t i) {
    return QuantizeQ8Args{.x = a.x.slice(0, i, i + 1),
                          .codes = a.codes.slice(0, i, i + 1),
                          .scales = a.scales.slice(0, i, i + 1),
                          .group = a.group};
  };
  test.strided = [](QuantizeQ8Args& a, test::StridedCopy& copy) {
    copy(a.x), copy(a.codes), copy(a.scales);
  };
  check_op(quantize_q8.impls, Context{}, arena, test);
}

TEST(QuantizeQ8, MatchesTheDefinition) {
  for (const int64_t k : {0, 1, 5, 63, 128, 129, 200, 1024}) {
    for (const int64_t t : {0, 1, 15}) {
      check_quantize_q8(t, k, 128, DType::kF32);
      check_quantize_q8(t, k, 128, DType::kBF16);
      check_quantize_q8(t, k, 37, DType::kF32);
    }
  }
}

void check_fake_quant(FakeQuantFormat format, int64_t t, int64_t k, int group, DType in,
                      DType out) {
  Arena arena;
  Rng rng(static_cast<uint64_t>(t * 10007 + k + group));
  const TensorView x = arena.input(in, {t, k});
  fill(x, rng);
  const FakeQuantArgs args = test::fake_quant_of(arena, x, out, format, group);
  test::OpCase<FakeQuantArgs> test{
      .name = fmt::format("fake_quant {}x{} by {}", t, k, group), .args = args, .num_tokens = t};
  // Exact in both dtypes: a code has at most 4 significant bits and the scale is a power of two.
  test.outputs = {{"out", args.out, fake_quant_oracle(args), kExact}};
  test.one_token = [](const FakeQuantArgs& a, int64_t i) {
    FakeQuantArgs one = a;
    one.x = a.x.slice(0, i, i + 1);
    one.out = a.out.slice(0, i, i + 1);
    return one;
  };
  test.strided = [](FakeQuantArgs& a, test::StridedCopy& copy) { copy(a.x), copy(a.out); };
  check_op(fake_quant.impls, Context{}, arena, test);
}

TEST(QuantizeQ8, StoresCodesOnOtherRanks) {
  if (test::gpu() == nullptr) GTEST_SKIP() << "no GPU";
  for (const int64_t t : {1, 37}) {
    test::Arena arena;
    const TensorView x = arena.input(DType::kBF16, {t, 384});
    Rng rng(7);
    test::fill_normal(x, rng);
    const QuantizeQ8Args args{.x = x,
                              .codes = arena.output(DType::kE4M3, {t, 384}),
                              .scales = arena.output(DType::kE8M0, {t, 3})};
    EXPECT_EQ(test::check_mirrors(quantize_q8, {}, arena, args,
                                  {&QuantizeQ8Args::codes, &QuantizeQ8Args::scales}),
              1);
  }
}

TEST(FakeQuant, MatchesTheDefinition) {
  for (const int64_t t : {0, 1, 15}) {
    for (const int64_t k : {1, 64, 100, 448, 1000}) {
      check_fake_quant(FakeQuantFormat::kS8, t, k, 64, DType::kF32, DType::kF32);
      check_fake_quant(FakeQuantFormat::kS8, t, k, 64, DType::kBF16, DType::kBF16);
    }
    for (const int64_t k : {0, 32, 96, 128}) {
      check_fake_quant(FakeQuantFormat::kS4, t, k, 32, DType::kF32, DType::kF32);
      check_fake_quant(FakeQuantFormat::kS4, t, k, 32, DType::kBF16, DType::kF32);
    }
    check_fake_quant(FakeQuantFormat::kS4, t, 21, 7, DType::kF32, DType::kBF16);
  }
}

struct Vector {
  FakeQuantFormat format;
  float amax, value, want;
};

TEST(FakeQuant, VectorsOfTheSpec) {
  for (const Vector& v :
       {Vector{FakeQuantFormat::kS8, 3.f, 3.f, 3.f},
        Vector{FakeQuantFormat::kS8, 3.f, 0.10009765625f, 0.1015625f},
        Vector{FakeQuantFormat::kS8, 448.f, 448.f, 448.f},
        Vector{FakeQuantFormat::kS8, 0.f, 0.f, 0.f}, Vector{FakeQuantFormat::kS4, 6.f, 5.f, 4.f},
        Vector{FakeQuantFormat::kS4, 6.f, 3.5f, 4.f}, Vector{FakeQuantFormat::kS4, 6.f, 2.5f, 2.f},
        Vector{FakeQuantFormat::kS4, 6.5f, 6.5f, 6.f}}) {
    const Buffer x(DType::kF32, {1, 32});
    x.as<float>()[3] = v.value;
    x.as<float>()[17] = v.amax;
    fake_quant(Context{}, {.x = x, .out = x, .format = v.format, .group = 32});
    EXPECT_EQ(x.as<float>()[3], v.want) << v.amax << " " << v.value;
  }
}

TEST(FakeQuant, IsStable) {
  // Quantizing twice gives the same values, so packing a simulated cache is lossless.
  for (const FakeQuantFormat format : {FakeQuantFormat::kS8, FakeQuantFormat::kS4}) {
    const Buffer x(DType::kF32, {50, 64}), once(DType::kF32, {50, 64}),
        twice(DType::kF32, {50, 64});
    Rng rng(5);
    fill(x, rng);
    fake_quant(Context{}, {.x = x, .out = once, .format = format, .group = 32});
    fake_quant(Context{}, {.x = once, .out = twice, .format = format, .group = 32});
    for (int64_t i = 0; i < 50 * 64; ++i) EXPECT_EQ(once.as<float>()[i], twice.as<float>()[i]);
  }
}

void check_hadamard(int64_t t, int64_t n, DType in, DType out) {
  Arena arena;
  Rng rng(static_cast<uint64_t>(t * 10007 + n));
  const HadamardArgs args = test::random_hadamard(arena, rng, t, n, in, out);
  test::OpCase<HadamardArgs> test{
      .name = fmt::format("hadamard {}x{}", t, n), .args = args, .num_tokens = t};
  // log2(n) additions, each within half an ulp of a partial sum; divided by sqrt(n), no partial
  // result is larger than about twice the largest output. The store rounds once more.
  const double levels = std::log2(static_cast<double>(n)) + 2;
  test.outputs = {
      {"out", args.out, hadamard_oracle(args), {.ulps = 0.51, .rel = levels * 0x1p-24}}};
  test.one_token = [](const HadamardArgs& a, int64_t i) {
    return HadamardArgs{.x = a.x.slice(0, i, i + 1), .out = a.out.slice(0, i, i + 1)};
  };
  test.strided = [](HadamardArgs& a, test::StridedCopy& copy) { copy(a.x), copy(a.out); };
  check_op(hadamard.impls, Context{}, arena, test);
}

TEST(Hadamard, AgreesWithTheMatrix) {
  for (const int64_t n : {1, 2, 4, 8, 16, 32, 64, 128, 512}) {
    for (const int64_t t : {0, 1, 7}) {
      check_hadamard(t, n, DType::kF32, DType::kF32);
      check_hadamard(t, n, DType::kBF16, DType::kBF16);
    }
  }
}

TEST(Hadamard, IsItsOwnInverseAndHasTheFactorOfTheSpec) {
  const Buffer x(DType::kF32, {1, 128});
  x.as<float>()[5] = 1;
  hadamard(Context{}, {.x = x, .out = x});
  for (int j = 0; j < 128; ++j) {
    const bool odd = ((j & 1) != 0) != ((j & 4) != 0);  // 5 = 101b
    EXPECT_EQ(x.as<float>()[j], odd ? -0.08838834764831845f : 0.08838834764831845f) << j;
  }
  hadamard(Context{}, {.x = x, .out = x});
  for (int j = 0; j < 128; ++j) EXPECT_NEAR(x.as<float>()[j], j == 5 ? 1 : 0, 1e-6) << j;
}

TEST(FakeQuant, FourBitsRefuseNaN) {
  Arena arena;
  const TensorView x = arena.input(DType::kF32, {2, 64}), out = arena.output(DType::kF32, {2, 64});
  const FakeQuantArgs args{.x = x, .out = out, .format = FakeQuantFormat::kS4, .group = 32};
  fake_quant(Context{}, args);
  for (const double value : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    test::set_value(x, 70, value);
    EXPECT_NE(test::error_of([&] { fake_quant(Context{}, args); }).find("value 70 of x is "),
              std::string::npos);
  }
}

TEST(Quant, ReportsErrors) {
  Arena arena;
  const TensorView x = arena.input(DType::kF32, {2, 100}),
                   out = arena.output(DType::kF32, {2, 100});
  EXPECT_EQ(test::error_of([&] {
              quantize_q8(Context{}, {.x = x,
                                      .codes = arena.output(DType::kE4M3, {2, 100}),
                                      .scales = arena.output(DType::kE8M0, {2, 2}),
                                      .group = 32});
            }),
            "scales: want [t=2, 4] F8_E8M0, got [2, 2] F8_E8M0");
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(test::error_of([&] {
                    fake_quant(Context{},
                               {.x = x, .out = out, .format = FakeQuantFormat::kS4, .group = 32});
                  }),
                  "k=100 is not a multiple of group=32"));
  EXPECT_TRUE(has(test::error_of([&] { fake_quant(Context{}, {.x = x, .out = out, .group = 0}); }),
                  "group=0"));
  EXPECT_TRUE(has(test::error_of([&] { hadamard(Context{}, {.x = x, .out = out}); }), "n=100"));
}

}  // namespace
}  // namespace dsv4
