// Against Tokenizer::encode(), which the `tokenizers` package vouches for, and what must differ.

#include "dsv4/text/text_encoder.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/tokenizer/tokenizer_data.h"

namespace dsv4 {
namespace {

using Ids = std::vector<int32_t>;

const TextEncoder& encoder() {
  static const TextEncoder text = TextEncoder::load(test::kTokenizerPath);
  return text;
}

Ids encode(std::string_view text) {
  Ids ids;
  encoder().encode(text, ids);
  return ids;
}

const TokenizerFile& file() {
  static const TokenizerFile parsed =
      parse_tokenizer_json(read_text_file(test::kTokenizerPath), test::kTokenizerPath);
  return parsed;
}
const std::vector<AddedToken>& added_tokens() {
  return file().added;
}

bool spells_added_token(const std::string& text) {
  for (const AddedToken& token : added_tokens()) {
    if (text.find(token.content) != text.npos) return true;
  }
  return false;
}

TEST(TextEncoder, GivesTheTokenizersIdsWhereNoAddedTokenIsSpelled) {
  int compared = 0;
  for (const auto& golden : test::goldens().at("cases")) {
    const auto text = golden.at(0).get<std::string>();
    if (spells_added_token(text)) continue;
    ASSERT_EQ(encode(text), golden.at(1).get<Ids>()) << golden.dump();
    ++compared;
  }
  EXPECT_GT(compared, 1500);
}

// Some added tokens of the golden tokenizer are words of its vocabulary, too; merges may give
// those.
TEST(TextEncoder, GivesNoTokenThatIsOnlyAdded) {
  const std::set<int32_t> vocabulary(file().vocab_ids.begin(), file().vocab_ids.end());
  std::set<int32_t> only_added;
  for (const AddedToken& token : added_tokens()) {
    if (!vocabulary.contains(token.id)) only_added.insert(token.id);
  }
  ASSERT_GT(only_added.size(), 10u);
  for (const AddedToken& token : added_tokens()) {
    for (const std::string& text :
         {token.content, "a" + token.content + "b", " " + token.content}) {
      const Ids ids = encode(text);
      for (const int32_t id : ids) ASSERT_FALSE(only_added.contains(id)) << text;
      ASSERT_EQ(test::golden_tokenizer().decode(ids), text);
    }
  }
}

TEST(TextEncoder, AppendsAndKeepsInvalidBytes) {
  Ids ids = {7};
  const std::string text = "ab\xff<think>\xe4\xb8";
  encoder().encode(text, ids);
  EXPECT_EQ(ids[0], 7);
  EXPECT_EQ(test::golden_tokenizer().decode(std::span(ids).subspan(1)), text);
}

TEST(TextEncoder, TakesWholePiecesWithIgnoreMerges) {
  auto json = test::tiny_tokenizer_json({"abc"});
  json["model"]["ignore_merges"] = true;
  const TextEncoder text(parse_tokenizer_json(json.dump(), "test"));
  Ids ids;
  text.encode("abc abcd", ids);
  EXPECT_EQ(ids.front(), 256);
  EXPECT_EQ(ids.size(), 6u) << "the second word is no token";
}

}  // namespace
}  // namespace dsv4
