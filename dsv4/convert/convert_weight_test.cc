// Pieces: a weight that takes many gives the bytes of one that takes one.

#include "dsv4/convert/convert_weight.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

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

Result convert(const WeightView& source, const std::string& format, int64_t piece_elements) {
  const std::string prefix = "layers.0.attn.wkv";
  OutputItem item{.name = prefix, .is_weight = true, .source = source.format};
  item.n = source.n, item.k = source.k;
  item.target = parse_recipe("attn " + format, "r").rules.at(0).target;
  item.source_bytes = source.bytes();
  ConvertChoice choice;
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
  result.error = WeightConverter(piece_elements).convert(source, item, choice, sink);
  return result;
}

TEST(ConvertWeight, PiecesDoNotShow) {
  Arena arena;
  Rng rng(11);
  for (const WeightFormat format : test::kAllWeightFormats) {
    const WeightView source = test::random_weight(arena, rng, format, kRows, kColumns);
    for (const char* target : {"k2", "k3", "k4-bnf", "k5", "fp8", "bf16"}) {
      SCOPED_TRACE(fmt::format("{} to {}", name(format), target));
      const Result one = convert(source, target, int64_t{1} << 20);
      const Result many = convert(source, target, 1);
      EXPECT_EQ(one.calls, 1);
      EXPECT_EQ(many.calls, 3);
      EXPECT_EQ(one.consumed, source.bytes());
      EXPECT_EQ(many.consumed, source.bytes());
      EXPECT_EQ(one.tensors, many.tensors);
      // Sums of the same numbers in another grouping.
      EXPECT_NEAR(one.error.noise, many.error.noise, 1e-12 * one.error.noise);
      EXPECT_EQ(one.error.largest, many.error.largest);
    }
  }
}

TEST(WeightErrors, SumsAreThoseOfTheDefinition) {
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
  EXPECT_EQ(error.largest, 1);
  EXPECT_DOUBLE_EQ(error.sqnr_db().value(), 10 * std::log10(30 / 1.25));
}

}  // namespace
}  // namespace dsv4
