#include "dsv4/convert/ledger.h"

#include <gtest/gtest.h>

#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "tests/harness/errors.h"
#include "tests/harness/temp_folder.h"

namespace dsv4 {
namespace {

using test::error_of;
using test::says;
using test::TempFolder;

Ledger small_ledger() {
  return {.tool = "dsv4 test",
          .source = {{"name", "m"}, {"tensors", 3}, {"bytes", 1000}},
          .output = {{"tensors", 4}, {"bytes", 500}},
          .options = {{"recipe", "experts k3\n"}, {"scales", "search"}},
          .weights = {{"layers.0.ffn.experts.0.w1", "k3-bnf", 1024, 416, 15.5},
                      {"layers.0.ffn.experts.0.w2", "k3-bnf", 1024, 416, 16.5},
                      {"layers.0.ffn.experts.0.w3", "mxfp4", 1024, 544, std::nullopt},
                      {"head", "bf16", 100, 200, std::nullopt}},
          .exceptions = {{"layers.0.ffn.experts.0.w3", "scales span 20 octaves"}}};
}

TEST(Ledger, TotalsByPart) {
  const auto totals = small_ledger().totals();
  const LedgerTotal& experts = totals.at("experts");
  EXPECT_EQ(experts.weights, 3);
  EXPECT_EQ(experts.exact, 1);
  EXPECT_EQ(experts.bytes, 416 + 416 + 544);
  EXPECT_DOUBLE_EQ(experts.bits(), 8. * 1376 / 3072);
  EXPECT_DOUBLE_EQ(experts.mean_sqnr_db.value(), 16);
  EXPECT_FALSE(totals.at("head").mean_sqnr_db.has_value());
  EXPECT_DOUBLE_EQ(totals.at("head").bits(), 16);
}

TEST(Ledger, TextRoundTrips) {
  Ledger ledger = small_ledger();
  ledger.evals.push_back({{"kld", 0.01}});
  const Ledger again = parse_ledger(to_text(ledger), "l");
  EXPECT_EQ(to_text(again), to_text(ledger));
  EXPECT_EQ(again.weights.at(0).sqnr_db, 15.5);
  EXPECT_EQ(again.exceptions.at(0).why, "scales span 20 octaves");
  EXPECT_EQ(again.evals, ledger.evals);
}

TEST(Ledger, EvalsAreAppended) {
  const TempFolder folder;
  EXPECT_FALSE(read_ledger(folder.path()).has_value());
  EXPECT_TRUE(says(error_of(ErrorCode::kBadInput, [&] { append_eval(folder.path(), 1); }),
                   "has no quantization_ledger.json"));
  folder.write(kLedgerFile, to_text(small_ledger()));
  append_eval(folder.path(), {{"kld", 0.5}});
  append_eval(folder.path(), {{"kld", 0.25}});
  const auto ledger = read_ledger(folder.path());
  ASSERT_TRUE(ledger.has_value());
  EXPECT_EQ(ledger->evals, nlohmann::json::parse(R"([{"kld": 0.5}, {"kld": 0.25}])"));
  EXPECT_EQ(ledger->weights.size(), 4u);
  EXPECT_EQ(folder.list().size(), 1u) << "a temporary file remains";
}

TEST(Ledger, ErrorsAreOneLine) {
  const std::string good = to_text(small_ledger());
  const auto with = [&](std::string_view from, std::string_view to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return error_of(ErrorCode::kBadInput, [&] { parse_ledger(text, "l.json"); });
  };
  EXPECT_TRUE(says(with("\"version\": 1", "\"version\": 2"), "l.json: version is 2"));
  EXPECT_TRUE(says(with("\"evals\": []", "\"evals\": 3"), "l.json: "));
  EXPECT_TRUE(says(with("{\"bytes\":1000", "{\"bytes\":"), "l.json: not valid JSON"));
  EXPECT_TRUE(
      says(with("\"tool\"", "\"fool\""), "l.json: not a quantization ledger: want version"));
  EXPECT_TRUE(says(with("\"k3-bnf\",1024", "\"k3-bnf\",-1"), "experts.0.w1: -1 is not a size"));
  EXPECT_TRUE(says(with("\"k3-bnf\",1024", "\"k3-bnf\",\"x\""), "is not a size"));
  EXPECT_TRUE(says(with("\"source\": {", "\"source\": 1, \"x\": {"), "source is not an object"));
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  EXPECT_TRUE(says(with("\"evals\": []", "\"evals\": " + deep), "l.json: nested deeper than 64"));
}

TEST(Ledger, HandlesFlashSize) {
  Ledger ledger = small_ledger();
  for (int i = 0; i < 69187; ++i)
    ledger.weights.push_back({fmt::format("layers.{}.ffn.experts.{}.w1", i % 43, i / 43), "k3-bnf",
                              int64_t{1} << 23, 3407872, 15.4321 + i * 1e-3});
  const TempFolder folder;
  folder.write(kLedgerFile, to_text(ledger));
  EXPECT_EQ(read_ledger(folder.path())->weights.size(), ledger.weights.size());
}

}  // namespace
}  // namespace dsv4
