#include "dsv4/ops/kbit/quantize_kbit.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dsv4/base/error.h"
#include "dsv4/formats/kbit.h"
#include "dsv4/formats/weight.h"
#include "dsv4/ops/kbit/quantize_kbit_case.h"
#include "tests/harness/errors.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using test::Arena;

// All codebooks of the project, and two of a user: asymmetric with a repeated value, and larger
// than 1.
std::vector<Codebook> codebooks() {
  std::vector<Codebook> books;
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    books.push_back(nf_codebook(bits));
    books.push_back(bnf_codebook(bits));
  }
  books.push_back(e2m1_codebook());
  const float lopsided[] = {-0.5f, -0.25f, 0.f, 0.f, 0.125f, 0.375f, 0.75f, 1.f};
  const float wide[] = {-3.f, -1.f, 1.f, 3.f};
  books.push_back(user_codebook(lopsided));
  books.push_back(user_codebook(wide));
  return books;
}

// Difficult blocks: noise at many scales, ties between codebook values, zeros of both signs, one
// number among zeros, values equal to the codebook's.
void fill_blocks(const TensorView& x, Rng& rng, const Codebook& book) {
  const int64_t k = x.dim(1);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const uint64_t kind = random_bits(7, static_cast<uint64_t>(i / k * 1000 + i % k / 32)) % 6;
    const auto code = static_cast<size_t>(rng.below(book.size() - 1));
    const double low = static_cast<double>(book.value[code]);
    const double high = static_cast<double>(book.value[code + 1]);
    const double scale = std::exp2(static_cast<double>(kind) - 14);
    const double value = kind == 0   ? rng.normal() * 0.3
                         : kind == 1 ? (low + high) / 2
                         : kind == 2 ? (rng.below(2) == 0 ? 0. : -0.)
                         : kind == 3 ? (i % 32 == 5 ? 0.7 : 0.)
                         : kind == 4 ? low * 0.5
                                     : rng.normal() * scale;
    test::set_value(x, i, value);
  }
}

struct Case {
  Arena arena;
  QuantizeKbitArgs args;

  Case(int64_t n, int64_t k, const Codebook& book, ScaleChoice choice, DType dtype = DType::kF32) {
    const TensorView x = arena.input(dtype, {n, k});
    Rng rng(static_cast<uint64_t>(n * 10000 + k * 10 + book.bits));
    fill_blocks(x, rng, book);
    args = test::quantize_kbit_of(arena, x, book, choice);
  }

  test::OpCase<QuantizeKbitArgs> op_case(const QuantizedKbit& want) const {
    test::OpCase<QuantizeKbitArgs> test{
        .name = fmt::format("quantize_kbit {}x{} K={} {}", args.x.dim(0), args.x.dim(1),
                            args.codebook.bits, name(args.choice)),
        .args = args,
        .num_tokens = args.x.dim(0)};
    test.outputs = {{"planes", args.planes, want.planes, {.ulps = 0}},
                    {"scales", args.scales, want.scales, {.ulps = 0}}};
    test.one_token = [](const QuantizeKbitArgs& a, int64_t i) {
      QuantizeKbitArgs one = a;
      one.x = a.x.slice(0, i, i + 1);
      one.planes = a.planes.slice(0, i, i + 1);
      one.scales = a.scales.slice(0, i, i + 1);
      return one;
    };
    return test;
  }
};

std::vector<double> values_of(const ConstTensorView& view) {
  std::vector<double> values;
  for (int64_t i = 0; i < view.numel(); ++i) values.push_back(test::value_at(view, i));
  return values;
}

WeightView weight_of(const QuantizeKbitArgs& args) {
  return {.format = WeightFormat::kKbit,
          .n = args.x.dim(0),
          .k = args.scales.dim(1) * kKbitBlock,
          .data = args.planes,
          .scale = args.scales,
          .scale2 = args.tensor_scale,
          .bits = args.codebook.bits,
          .codebook = {TensorMeta::contiguous(DType::kF32, {args.codebook.size()}),
                       reinterpret_cast<const std::byte*>(args.codebook.value.data())}};
}

TEST(QuantizeKbit, ReferenceMatchesTheSpecBitForBit) {
  for (const Codebook& book : codebooks()) {
    for (const int64_t k : {1, 33, 2100}) {
      for (const int64_t n : {0, 3}) {
        Case c(n, k, book, ScaleChoice::kReference);
        check_op(quantize_kbit.impls, {}, c.arena,
                 c.op_case(quantize_kbit_reference_oracle(c.args)));
      }
    }
  }
}

TEST(QuantizeKbit, TakesEveryDtypeAndTensorScale) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const float scale : {0x1p-4f, 0.5f, 1.f, 0x1p14f}) {
      Case c(3, 100, nf_codebook(3), ScaleChoice::kReference, dtype);
      c.args.tensor_scale = scale;
      check_op(quantize_kbit.impls, {}, c.arena, c.op_case(quantize_kbit_reference_oracle(c.args)));
    }
  }
}

TEST(QuantizeKbit, TakesStridedRows) {
  Case c(4, 70, bnf_codebook(4), ScaleChoice::kReference);
  c.args.x = c.args.x.slice(1, 3, 43);
  c.args.planes = c.arena.output(DType::kI32, {4, 8 + 8}).slice(1, 0, 8);
  c.args.scales = c.arena.output(DType::kU8, {4, 2 + 1}).slice(1, 0, 2);
  const QuantizedKbit want = quantize_kbit_reference_oracle(c.args);
  quantize_kbit({}, c.args);
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t i = 0; i < 8; ++i)
      EXPECT_EQ(c.args.planes.row<int32_t>(r)[i], want.planes[static_cast<size_t>(r * 8 + i)]);
    for (int64_t i = 0; i < 2; ++i)
      EXPECT_EQ(c.args.scales.row<uint8_t>(r)[i], want.scales[static_cast<size_t>(r * 2 + i)]);
  }
}

// docs/spec/lowbit.md 1.6, through the public op.
TEST(QuantizeKbit, GoldenPlanes) {
  constexpr uint32_t kWant[] = {0xAAAAAAAA, 0xCCCCCCCC, 0xF0F0F0F0, 0xFF00FF00, 0xFFFF0000};
  for (const ScaleChoice choice : {ScaleChoice::kReference, ScaleChoice::kSearched}) {
    for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
      const Codebook book = nf_codebook(bits);
      Case c(1, 32, book, choice);
      const Arena values;
      std::vector<float> x;
      for (size_t i = 0; i < 32; ++i) x.push_back(book.value[i % static_cast<size_t>(book.size())]);
      c.args.x = {TensorMeta::contiguous(DType::kF32, {1, 32}),
                  reinterpret_cast<std::byte*>(x.data())};
      quantize_kbit({}, c.args);
      for (int j = 0; j < bits; ++j)
        EXPECT_EQ(c.args.planes.as<uint32_t>()[j], kWant[j]) << "K=" << bits << " plane " << j;
      EXPECT_EQ(c.args.scales.as<uint8_t>()[0], 0xB0);
    }
  }
}

TEST(QuantizeKbit, GoldenScales) {
  const std::pair<float, uint8_t> want[] = {{1.f, 0xB0},   {0.5f, 0xA0}, {0.75f, 0xA8},
                                            {0.1f, 0x7A},  {31.f, 0xFF}, {0.0005f, 0x08},
                                            {30.9f, 0xFF}, {0.f, 0x00}};
  for (const auto& [absmax, byte] : want) {
    Case c(1, 1, nf_codebook(4), ScaleChoice::kReference);
    const float x = -absmax;
    c.args.x = {TensorMeta::contiguous(DType::kF32, {1, 1}),
                reinterpret_cast<const std::byte*>(&x)};
    quantize_kbit({}, c.args);
    EXPECT_EQ(c.args.scales.as<uint8_t>()[0], byte) << absmax;
  }
}

// The bits do not depend on the instruction set, the threads or neighboring blocks. The first run
// gives the expected values; the next test checks their quality.
TEST(QuantizeKbit, SearchedBitsAreTheSameEverywhere) {
  for (const Codebook& book : codebooks()) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{0, 64}, {1, 1}, {2, 45}, {3, 2600}}) {
      Case c(n, k, book, ScaleChoice::kSearched);
      if (k > 40) {
        const TensorView importance = c.arena.input(DType::kF32, {k});
        Rng rng(5);
        test::fill_uniform(importance, rng, 0, 3);
        c.args.importance = importance;
      }
      quantize_kbit({}, c.args);
      const QuantizedKbit first{values_of(c.args.planes), values_of(c.args.scales)};
      check_op(quantize_kbit.impls, {}, c.arena, c.op_case(first));
    }
  }
}

// Errors of a searched tensor, of the best possible bytes, and of the reference.
struct Errors {
  double searched = 0, best = 0, worst_ratio = 1;
};

Errors searched_errors(Case& c) {
  quantize_kbit({}, c.args);
  Errors errors;
  const int64_t k = c.args.x.dim(1);
  const WeightView weight = weight_of(c.args);
  for (int64_t r = 0; r < c.args.x.dim(0); ++r) {
    for (int64_t begin = 0; begin < k; begin += kKbitBlock) {
      const auto count = static_cast<size_t>(std::min<int64_t>(kKbitBlock, k - begin));
      const float* x = c.args.x.row<float>(r) + begin;
      std::vector<double> weights;
      double error = 0;
      for (size_t i = 0; i < count; ++i) {
        const int64_t column = begin + static_cast<int64_t>(i);
        weights.push_back(c.args.importance.empty()
                              ? 1
                              : static_cast<double>(c.args.importance.as<float>()[column]));
        error += weights.back() *
                 std::pow(weight_value(weight, r, column) - static_cast<double>(x[i]), 2);
      }
      const auto all = scale_errors_oracle(c.args.codebook, {x, count}, weights);
      const double best = *std::min_element(all.begin(), all.end());
      errors.searched += error;
      errors.best += best;
      if (best > 0) errors.worst_ratio = std::max(errors.worst_ratio, error / best);
    }
  }
  return errors;
}

enum class Noise { kGaussian, kStudent, kUniform, kSparse, kOneMagnitude };

double draw(Noise noise, Rng& rng) {
  const double normal = rng.normal();
  switch (noise) {
    case Noise::kGaussian:
      return normal;
    case Noise::kStudent: {  // 5 degrees of freedom
      double chi = 0;
      for (int i = 0; i < 5; ++i) chi += std::pow(rng.normal(), 2);
      return normal / std::sqrt(chi / 5);
    }
    case Noise::kUniform:
      return rng.uniform(-1, 1);
    case Noise::kSparse:
      return rng.below(10) == 0 ? normal : 0;
    case Noise::kOneMagnitude:
      return (rng.below(2) == 0 ? -1 : 1) * (1 + 0.05 * normal);
  }
  return 0;
}

TEST(QuantizeKbit, SearchFindsTheBestOfAllBytes) {
  for (const Noise noise :
       {Noise::kGaussian, Noise::kStudent, Noise::kUniform, Noise::kSparse, Noise::kOneMagnitude}) {
    for (const bool weighted : {false, true}) {
      for (const Codebook& book : codebooks()) {
        Case c(4, 32 * 25 + 7, book, ScaleChoice::kSearched);
        const TensorView x = c.arena.input(DType::kF32, {4, c.args.x.dim(1)});
        const TensorView importance = c.arena.input(DType::kF32, {x.dim(1)});
        Rng rng(static_cast<uint64_t>(noise) + 10);
        for (int64_t i = 0; i < x.numel(); ++i) test::set_value(x, i, 0.02 * draw(noise, rng));
        for (int64_t i = 0; i < importance.numel(); ++i)
          test::set_value(importance, i, std::exp(1.5 * rng.normal()));
        c.args.x = x;
        if (weighted) c.args.importance = importance;
        const Errors errors = searched_errors(c);
        const double loss = 10 * std::log10(errors.searched / errors.best);
        // quantize_kbit_kernel.h explains both numbers.
        EXPECT_LT(loss, noise == Noise::kOneMagnitude ? 0.35 : 0.02)
            << static_cast<int>(noise) << weighted << " K=" << book.bits << " " << book.value[0]
            << " worst " << errors.worst_ratio;
      }
    }
  }
}

TEST(QuantizeKbit, ZeroBlockHasScaleZero) {
  for (const ScaleChoice choice : {ScaleChoice::kReference, ScaleChoice::kSearched}) {
    Case c(1, 40, nf_codebook(3), choice);
    const TensorView x = c.arena.inout(DType::kF32, {1, 40});
    c.args.x = x;
    quantize_kbit({}, c.args);
    for (int64_t i = 0; i < 40; ++i) {
      const int64_t block = i / 32;
      EXPECT_EQ(c.args.scales.as<uint8_t>()[block], 0);
      EXPECT_EQ(kbit_code(c.args.planes.as<uint32_t>() + block * 3, 3, static_cast<int>(i % 32)),
                3);
    }
  }
}

// Scales 1 and 2 (K = 4, in different batches), and 0.75 and 1 (K = 2, in one batch), have equal
// errors.
TEST(QuantizeKbit, EqualErrorsGiveTheSmallerByte) {
  const float sixteen[] = {-1.f, -.5f, -.25f, -.2f, -.15f, -.1f, -.05f, -.01f,
                           .01f, .05f, .1f,   .15f, .2f,   .25f, .5f,   1.f};
  const float four[] = {-1.f, -.75f, .75f, 1.f};
  const auto byte_of = [](const Codebook& book, float magnitude) {
    Case c(1, 32, book, ScaleChoice::kSearched);
    const TensorView x = c.arena.inout(DType::kF32, {1, 32});
    for (int i = 0; i < 32; ++i) x.as<float>()[i] = i % 3 == 0 ? -magnitude : magnitude;
    c.args.x = x;
    quantize_kbit({}, c.args);
    return c.args.scales.as<uint8_t>()[0];
  };
  EXPECT_EQ(byte_of(user_codebook(sixteen), 1.f), 0xB0);
  EXPECT_EQ(byte_of(user_codebook(four), .75f), 0xA8);
}

TEST(QuantizeKbit, ImportanceIsRelativeWithinABlock) {
  Case c(2, 96, bnf_codebook(2), ScaleChoice::kSearched);
  const TensorView importance = c.arena.inout(DType::kF32, {96});
  const auto scales_with = [&](const auto& weight) {
    for (int64_t i = 0; i < 96; ++i) importance.as<float>()[i] = weight(i);
    c.args.importance = importance;
    quantize_kbit({}, c.args);
    return values_of(c.args.scales);
  };
  const auto plain = scales_with([](int64_t) { return 1.f; });
  EXPECT_EQ(plain, scales_with([](int64_t) { return 0.f; })) << "no column matters: all alike";
  EXPECT_EQ(plain, scales_with([](int64_t i) { return i < 32 ? 3e38f : 1e-38f; }));
  c.args.importance = {};
  quantize_kbit({}, c.args);
  EXPECT_EQ(plain, values_of(c.args.scales));
}

TEST(QuantizeKbit, RefusesValuesThatItCannotRepresent) {
  for (const ScaleChoice choice : {ScaleChoice::kReference, ScaleChoice::kSearched}) {
    Case c(3, 100, nf_codebook(4), choice);
    const TensorView x = c.arena.inout(DType::kF32, {3, 100});
    c.args.x = x;
    const auto error_with = [&](float value) {
      x.as<float>()[170] = value;
      return test::error_of(ErrorCode::kBadInput, [&] { quantize_kbit({}, c.args); });
    };
    EXPECT_TRUE(test::says(error_with(NAN), "x[1, 70] is nan (row 1, block 2)"));
    EXPECT_TRUE(test::says(error_with(-INFINITY), "x[1, 70] is -inf"));
    EXPECT_EQ(error_with(-31.5f),
              "row 1, block 2: value -31.5 / tensor_scale 1 is beyond the E4M4 range, +-31 here; "
              "use a tensor_scale of 2 or more");
    x.as<float>()[299] = 1000.f;
    EXPECT_TRUE(test::says(error_with(40.f), "row 1, block 2: value 40"));
    EXPECT_TRUE(test::says(error_with(40.f), "tensor_scale of 64 or more"));
    c.args.tensor_scale = 64;
    EXPECT_NO_THROW(quantize_kbit({}, c.args));
    c.args.tensor_scale = 1;
    x.as<float>()[299] = 0.f;
    x.as<float>()[170] = 31.f;
    EXPECT_NO_THROW(quantize_kbit({}, c.args));
  }
}

TEST(QuantizeKbit, SearchedScaleMustReachTheLargestValue) {
  Case c(1, 32, bnf_codebook(2), ScaleChoice::kSearched);
  const TensorView x = c.arena.inout(DType::kF32, {1, 32});
  c.args.x = x;
  x.as<float>()[3] = 20.7f;  // 31 * 0.6642 = 20.59
  EXPECT_TRUE(test::says(test::error_of(ErrorCode::kBadInput, [&] { quantize_kbit({}, c.args); }),
                         "+-20.59"));
  c.args.choice = ScaleChoice::kReference;
  EXPECT_NO_THROW(quantize_kbit({}, c.args));
}

TEST(QuantizeKbit, ReportsErrors) {
  const auto error_with = [](const auto& change) {
    Case c(2, 64, nf_codebook(3), ScaleChoice::kSearched);
    const TensorView importance = c.arena.inout(DType::kF32, {64});
    c.args.importance = importance;
    change(c.args, importance);
    return test::error_of([&] { quantize_kbit({}, c.args); });
  };
  using Args = QuantizeKbitArgs;
  EXPECT_EQ(error_with([](Args& a, auto&) { a.scales = a.scales.slice(1, 0, 1); }),
            "scales: want [n=2, 2] U8, got [2, 1] U8");
  EXPECT_TRUE(test::says(error_with([](Args& a, auto&) { a.codebook.bits = 6; }), "got 6"));
  EXPECT_TRUE(test::says(error_with([](Args& a, auto&) { a.tensor_scale = 3; }), "power of two"));
  EXPECT_TRUE(test::says(error_with([](Args& a, auto&) { a.tensor_scale = 0; }), "power of two"));
  EXPECT_TRUE(test::says(error_with([](Args& a, auto&) { a.choice = ScaleChoice::kReference; }),
                         "needs searched scales"));
  EXPECT_TRUE(test::says(error_with([](Args&, auto& w) { w.template as<float>()[40] = -1; }),
                         "importance of column 40 is -1"));
}

TEST(ChooseTensorScale, BringsTheLargestIntoRange) {
  const std::pair<float, float> want[] = {
      {0.f, 1.f},          {0.0625f, 1.f},    {1.f, 1.f},         {16.f, 1.f},
      {16.1f, 2.f},        {32.f, 2.f},       {32.1f, 4.f},       {0.06f, 0x1p-8f},
      {0x1p-6f, 0x1p-10f}, {3e38f, 0x1p124f}, {1e-45f, 0x1p-126f}};
  for (const auto& [largest, scale] : want)
    EXPECT_EQ(choose_tensor_scale(largest), scale) << largest;
  for (const float wrong : {-1.f, NAN, INFINITY})
    test::error_of(ErrorCode::kBadInput, [&] { choose_tensor_scale(wrong); });
}

TEST(LargestMagnitude, OfAnyTensor) {
  Arena arena;
  const TensorView x = arena.inout(DType::kBF16, {3, 5000});
  EXPECT_EQ(largest_magnitude(x), 0.f);
  test::set_value(x, 12345, -2.5);
  EXPECT_EQ(largest_magnitude(x), 2.5f);
  EXPECT_EQ(largest_magnitude(x.slice(0, 0, 0)), 0.f);
  test::set_value(x, 3, NAN);
  test::error_of(ErrorCode::kBadInput, [&] { largest_magnitude(x); });
}

}  // namespace
}  // namespace dsv4
