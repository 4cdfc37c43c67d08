// Ids and texts against the `tokenizers` package (tests/tokenizer/README.md), and input that the
// package does not accept.

#include "dsv4/text/tokenizer.h"

#include <gtest/gtest.h>

#include <thread>

#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/text/utf8.h"
#include "tests/tokenizer/tokenizer_data.h"

namespace dsv4 {
namespace {

using Ids = std::vector<int32_t>;
using test::golden_tokenizer;
using test::goldens;

TEST(TokenizerGolden, EncodesLikeThePackage) {
  ASSERT_GT(goldens().at("cases").size(), 3000u);
  for (const auto& golden : goldens().at("cases")) {
    const auto text = golden.at(0).get<std::string>();
    ASSERT_EQ(golden_tokenizer().encode(text), golden.at(1).get<Ids>()) << golden.dump();
  }
}

// The fourth entry, where present, is the package's decoding with special tokens skipped.
TEST(TokenizerGolden, DecodesLikeThePackage) {
  for (const auto& golden : goldens().at("cases")) {
    const auto text = golden.at(0).get<std::string>();
    const auto ids = golden.at(1).get<Ids>();
    ASSERT_EQ(golden_tokenizer().decode(ids), text);
    const std::string skipped = golden.size() == 4 ? golden.at(3).get<std::string>() : text;
    ASSERT_EQ(golden_tokenizer().decode(ids, true), skipped) << golden.dump();
  }
}

TEST(TokenizerGolden, SplitsLikeThePackage) {
  for (const auto& golden : goldens().at("cases")) {
    ASSERT_EQ(test::piece_sizes(golden.at(0).get<std::string>()), golden.at(2).get<Ids>())
        << golden.dump();
  }
}

// Merges in arbitrary order, including orders that no training produces; some with ignore_merges.
TEST(TokenizerGolden, MergesLikeThePackage) {
  for (const auto& golden : goldens().at("merge_cases")) {
    auto json = test::tiny_tokenizer_json(golden.at("tokens"), golden.at("merges"));
    json["model"]["ignore_merges"] = golden.at("ignore_merges");
    const Tokenizer tokenizer = test::parse_tokenizer(json);
    for (const auto& one : golden.at("cases")) {
      ASSERT_EQ(tokenizer.encode(one.at(0).get<std::string>()), one.at(1).get<Ids>())
          << golden.dump();
    }
  }
}

TEST(Tokenizer, ReadsBothSpellingsOfMerges) {
  auto json = nlohmann::json::parse(read_text_file(test::kTokenizerPath));
  for (auto& merge : json["model"]["merges"]) {
    merge = merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>();
  }
  const Tokenizer tokenizer = test::parse_tokenizer(json);
  const std::string text = "The cache of the expert model, 12345 größer 東京";
  EXPECT_EQ(tokenizer.encode(text), golden_tokenizer().encode(text));
}

TEST(Tokenizer, CachedPiecesEncodeTheSame) {
  const std::string text = " the attention";
  Ids twice = golden_tokenizer().encode(text);
  ASSERT_GE(twice.size(), 2u);
  const Ids once = twice;
  twice.insert(twice.end(), once.begin(), once.end());
  EXPECT_EQ(golden_tokenizer().encode(text + text), twice);
}

// An invalid byte becomes the token of that byte; the valid text on each side is tokenized alone.
TEST(Tokenizer, PassesInvalidBytesThrough) {
  const Tokenizer& tokenizer = golden_tokenizer();
  const std::vector<std::string> invalid = {"\x80",         "\xff",         "\xc3",    "\xe4\xb8",
                                            "\xed\xa0\x80", "\xf0\x9f\x98", "\xc0\xaf"};
  for (const std::string& bytes : invalid) {
    Ids want = tokenizer.encode("the model<think>");
    for (const char byte : bytes) {
      const Ids one = tokenizer.encode(std::string(1, byte));
      ASSERT_EQ(one.size(), 1u);
      ASSERT_EQ(tokenizer.token_bytes(one[0]), std::string(1, byte));
      want.push_back(one[0]);
    }
    const Ids tail = tokenizer.encode("  12345<｜User｜>");
    want.insert(want.end(), tail.begin(), tail.end());
    EXPECT_EQ(tokenizer.encode("the model<think>" + bytes + "  12345<｜User｜>"), want);
  }
}

TEST(Tokenizer, RoundTripsAnyBytes) {
  Rng rng(11);
  const std::vector<std::string> parts = {"<｜User｜>", "the", " ", "\r\n", "漢",
                                          "\xe6\xbc",   "12",  "😀", "<th"};
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (int64_t n = rng.below(40); n > 0; --n) {
      if (rng.uniform() < 0.5) {
        text += parts[static_cast<size_t>(rng.below(static_cast<int64_t>(parts.size())))];
      } else {
        text += static_cast<char>(rng.below(256));
      }
    }
    ASSERT_EQ(golden_tokenizer().decode(golden_tokenizer().encode(text)), text);
  }
}

TEST(Tokenizer, FindsAddedTokens) {
  const Tokenizer& tokenizer = golden_tokenizer();
  EXPECT_EQ(tokenizer.id("<｜begin▁of▁sentence｜>"), 0);
  const auto user = tokenizer.id("<｜User｜>"), think = tokenizer.id("<think>");
  ASSERT_TRUE(user && think);
  EXPECT_TRUE(tokenizer.is_special(*user));
  EXPECT_FALSE(tokenizer.is_special(*think));
  EXPECT_EQ(tokenizer.token_bytes(*user), "<｜User｜>");
  EXPECT_EQ(tokenizer.decode(Ids{*user, *think}, true), "<think>");
  EXPECT_TRUE(tokenizer.id("k><"));  // matched in the second pass
  EXPECT_FALSE(tokenizer.id(""));
  EXPECT_FALSE(tokenizer.id("the"));  // in the vocab, but not an added token
  EXPECT_FALSE(tokenizer.id("<｜User｜>x"));
}

// The package decodes an added token through the byte alphabet and returns "Stra\xdf" + "e", whose
// \xdf becomes U+FFFD.
TEST(Tokenizer, AddedTokenDecodesToItsContent) {
  auto json = test::tiny_tokenizer_json();
  json["added_tokens"].push_back({{"id", 256}, {"content", "Straße"}});
  const Tokenizer tokenizer = test::parse_tokenizer(json);
  EXPECT_EQ(tokenizer.encode("Straße"), Ids{256});
  EXPECT_EQ(tokenizer.decode(Ids{256}), "Straße");
}

TEST(Tokenizer, RejectsIdsOutsideItsVocabulary) {
  const Tokenizer& tokenizer = golden_tokenizer();
  for (const int32_t id : {-1, tokenizer.vocab_size(), INT32_MAX, INT32_MIN}) {
    EXPECT_THROW(tokenizer.token_bytes(id), Error);
    EXPECT_THROW(tokenizer.is_special(id), Error);
    EXPECT_THROW(tokenizer.decode(Ids{0, id}), Error);
  }
  EXPECT_EQ(tokenizer.decode({}), "");
}

TEST(Tokenizer, IsThreadSafe) {
  const auto& cases = goldens().at("cases");
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < 400; ++i) {
        const auto& golden = cases.at(i);
        wrong[t] +=
            golden_tokenizer().encode(golden.at(0).get<std::string>()) != golden.at(1).get<Ids>();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

}  // namespace
}  // namespace dsv4
