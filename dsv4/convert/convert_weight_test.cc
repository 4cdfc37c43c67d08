// Tests that many pieces give the same bytes as one, and tests errors and the gain.

#include "dsv4/convert/convert_weight.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "dsv4/base/error.h"
#include "dsv4/cpu/parallel.h"
#include "tests/harness/weights.h"

namespace dsv4 {
namespace {

using test::Arena;

constexpr int64_t kRows = 300, kColumns = 96;  // three pieces of 128 rows

struct Result {
  std::map<size_t, std::string> tensors;
  WeightError error;
  int64_t consumed = 0, calls = 0;
};

Result convert(const WeightView& source, const std::string& format, int64_t piece_elements,
               ScaleChoice scales = ScaleChoice::kSearched) {
  const std::string prefix = "layers.0.attn.wkv";
  OutputItem item{.name = prefix, .is_weight = true, .source = source.format};
  item.n = source.n, item.k = source.k;
  item.target = parse_recipe("attn " + format, "r").rules.at(0).target;
  item.source_bytes = source.bytes();
  ConvertChoice choice{.scales = scales};
  if (item.target.kind == Target::Kind::kKbit) choice.codebook = bnf_codebook(item.target.bits);
  Result result;
  const PieceSink sink = {.write =
                              [&](size_t tensor, int64_t offset, std::span<const std::byte> bytes) {
                                std::string& to = result.tensors[tensor];
                                EXPECT_EQ(to.size(), static_cast<size_t>(offset));
                                to.append(reinterpret_cast<const char*>(bytes.data()),
                                          bytes.size());
                              },
                          .consumed =
                              [&](int64_t bytes) {
                                result.consumed += bytes;
                                ++result.calls;
                              }};
  result.error = WeightConverter(host_room(), piece_elements).convert(source, item, choice, sink);
  return result;
}

TEST(ConvertWeight, BytesDoNotDependOnPieces) {
  Arena arena;
  Rng rng(11);
  for (const test::StoredAs& stored : test::kAllStored) {
    const WeightView source = test::random_weight(arena, rng, stored, kRows, kColumns);
    for (const char* target : {"k2", "k3", "k4-bnf", "k5", "fp8", "bf16"}) {
      SCOPED_TRACE(fmt::format("{} to {}", name(stored), target));
      const Result one = convert(source, target, int64_t{1} << 20);
      const Result many = convert(source, target, 1);
      EXPECT_EQ(one.calls, 1);
      EXPECT_EQ(many.calls, 3);
      EXPECT_EQ(one.consumed, source.bytes());
      EXPECT_EQ(many.consumed, source.bytes());
      EXPECT_EQ(one.tensors, many.tensors);
      // Sums of the same numbers, grouped differently.
      EXPECT_NEAR(one.error.noise, many.error.noise, 1e-12 * one.error.noise);
      EXPECT_EQ(one.error.gain, many.error.gain);
    }
  }
}

TEST(WeightErrors, SumsMatchTheDefinition) {
  Arena arena;
  const TensorView x = arena.input(DType::kF32, {2, 3}), y = arena.input(DType::kF32, {2, 3});
  const float xs[] = {1, -2, 3, 0, 4, 0}, ys[] = {1, -1, 3, 0.5f, 4, 0};
  std::memcpy(x.data, xs, sizeof xs);
  std::memcpy(y.data, ys, sizeof ys);
  WeightError error;
  EXPECT_FALSE(error.sqnr_db().has_value());
  error.add(x, x);
  EXPECT_FALSE(error.sqnr_db().has_value()) << "nothing was lost";
  error = {};
  error.add(x, y);
  EXPECT_EQ(error.signal, 30);
  EXPECT_EQ(error.noise, 1.25);
  EXPECT_EQ(error.dot, 1 + 2 + 9 + 16);
  EXPECT_DOUBLE_EQ(error.sqnr_db().value(), 10 * std::log10(30 / 1.25));
  error.correct_gain();
  EXPECT_EQ(error.gain, 30. / 28);
  double left = 0;
  for (size_t i = 0; i < 6; ++i) left += std::pow(30. / 28 * double{ys[i]} - double{xs[i]}, 2);
  EXPECT_NEAR(error.sqnr_db().value(), 10 * std::log10(30 / left), 1e-12);
}

TEST(WeightErrors, GainIsOneWithoutSignal) {
  Arena arena;
  const TensorView x = arena.input(DType::kF32, {1, 2}), zero = arena.input(DType::kF32, {1, 2});
  std::fill_n(x.as<float>(), 2, 1.f);
  std::fill_n(zero.as<float>(), 2, 0.f);
  WeightError lost, made_up;
  lost.add(x, zero);
  lost.correct_gain();
  EXPECT_EQ(lost.gain, 1);
  made_up.add(zero, x);
  made_up.correct_gain();
  EXPECT_EQ(made_up.gain, 1);
}

ConstTensorView view_of(const std::string& bytes, DType dtype,
                        std::initializer_list<int64_t> shape) {
  return {TensorMeta::contiguous(dtype, shape), reinterpret_cast<const std::byte*>(bytes.data())};
}

// With searched scales the decoded weight keeps its projection on the source; with the reference's
// scales it is what the reference produces.
TEST(ConvertWeight, SearchedScalesDoNotShrinkTheWeight) {
  Arena arena;
  Rng rng(12);
  const WeightView source = test::random_weight(arena, rng, {WeightFormat::kF32}, kRows, kColumns);
  for (const ScaleChoice scales : {ScaleChoice::kSearched, ScaleChoice::kReference}) {
    const Result result = convert(source, "k2", int64_t{1} << 20, scales);
    float scale2 = 0;
    std::memcpy(&scale2, result.tensors.at(3).data(), sizeof scale2);
    const WeightView stored{
        .format = WeightFormat::kKbit,
        .n = kRows,
        .k = kColumns,
        .data = view_of(result.tensors.at(0), DType::kI32, {kRows, kColumns / 16}),
        .scale = view_of(result.tensors.at(1), DType::kU8, {kRows, kColumns / 32}),
        .scale2 = scale2,
        .bits = 2,
        .codebook = view_of(result.tensors.at(2), DType::kF32, {4})};
    double dot = 0, signal = 0, noise = 0;
    for (int64_t n = 0; n < kRows; ++n) {
      for (int64_t k = 0; k < kColumns; ++k) {
        const double x = weight_value(source, n, k), y = weight_value(stored, n, k);
        dot += x * y, signal += x * x, noise += (y - x) * (y - x);
      }
    }
    EXPECT_NEAR(result.error.sqnr_db().value(), 10 * std::log10(signal / noise), 1e-4);
    if (scales == ScaleChoice::kSearched) {
      EXPECT_NEAR(dot / signal, 1, 1e-6);
    } else {
      EXPECT_EQ(scale2, 1.f);
      EXPECT_LT(dot / signal, 0.95);
    }
  }
}

}  // namespace
}  // namespace dsv4
