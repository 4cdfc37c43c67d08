// A vocabulary of the released size made of the demo's (apps/synthetic_tokenizer.h).

#include "apps/synthetic_tokenizer.h"

#include <gtest/gtest.h>

#include "dsv4/base/mapped_file.h"
#include "dsv4/base/rng.h"
#include "dsv4/text/tokenizer.h"

namespace dsv4 {
namespace {

constexpr int32_t kTokens = 129280;

std::string demo_json() {
  return read_text_file("models/demo/tokenizer.json");
}

const Tokenizer& demo() {
  static const Tokenizer tokenizer = Tokenizer::parse(demo_json(), "demo");
  return tokenizer;
}

const Tokenizer& widened() {
  static const Tokenizer tokenizer =
      Tokenizer::parse(apps::widened_tokenizer(demo_json(), kTokens), "widened");
  return tokenizer;
}

TEST(SyntheticTokenizer, EveryIdHasAText) {
  ASSERT_EQ(widened().vocab_size(), kTokens);
  for (int32_t id = 0; id < kTokens; ++id) ASSERT_FALSE(widened().token_bytes(id).empty()) << id;
  for (int32_t id = 3; id < 1000; ++id)
    ASSERT_EQ(widened().token_bytes(id), demo().token_bytes(id)) << "the demo's own keep their ids";
}

TEST(SyntheticTokenizer, AddedTokensAreThere) {
  for (const char* content : {"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>",
                              "<｜Assistant｜>", "<think>", "</think>"}) {
    ASSERT_TRUE(demo().id(content).has_value()) << content;
    ASSERT_TRUE(widened().id(content).has_value()) << content;
    const int32_t before = *demo().id(content), after = *widened().id(content);
    EXPECT_EQ(widened().is_special(after), demo().is_special(before)) << content;
    EXPECT_TRUE(after == before || after > kTokens - 100) << content << " is " << after;
  }
}

TEST(SyntheticTokenizer, TextsComeBackInFewerTokens) {
  const std::string english =
      "Long ago, a fisherman and his daughter lived beside the northern sea, and every evening "
      "they counted the boats that came home. <think>1234567 + 89</think>\n\n";
  EXPECT_EQ(widened().decode(widened().encode(english)), english);
  EXPECT_LT(widened().encode(english).size(), demo().encode(english).size());
  Rng rng(9);
  for (int round = 0; round < 200; ++round) {
    std::string text;
    for (int64_t i = rng.below(60); i > 0; --i) text += static_cast<char>(rng.below(256));
    ASSERT_EQ(widened().decode(widened().encode(text)), text);
  }
}

TEST(SyntheticTokenizer, DrawnIdsHaveAText) {
  Rng rng(4);
  std::vector<int32_t> ids;
  for (int i = 0; i < 1000; ++i) ids.push_back(static_cast<int32_t>(rng.below(kTokens)));
  const std::string text = widened().decode(ids);
  EXPECT_GT(text.size(), 3000u);
  EXPECT_EQ(widened().decode(widened().encode(text)), text);
}

}  // namespace
}  // namespace dsv4
