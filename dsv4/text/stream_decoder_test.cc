#include "dsv4/text/stream_decoder.h"

#include <gtest/gtest.h>

#include "dsv4/base/rng.h"
#include "dsv4/text/utf8.h"
#include "tests/tokenizer/tokenizer_data.h"

namespace dsv4 {
namespace {

const Tokenizer& byte_tokenizer() {
  static const Tokenizer tokenizer = test::parse_tokenizer(test::tiny_tokenizer_json());
  return tokenizer;
}

// The results of push() for the bytes, one at a time; the last entry is finish().
std::vector<std::string> pushed(std::string_view bytes) {
  StreamDecoder decoder(byte_tokenizer());
  std::vector<std::string> out;
  for (const char byte : bytes) {
    out.push_back(decoder.push(byte_tokenizer().encode(std::string(1, byte)).at(0)));
  }
  out.push_back(decoder.finish());
  return out;
}

TEST(StreamDecoder, HoldsBackIncompleteSequences) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(pushed("aé"), (Texts{"a", "", "é", ""}));
  EXPECT_EQ(pushed("😀"), (Texts{"", "", "", "😀", ""}));
  EXPECT_EQ(pushed("\xf0\x9f\x98"), (Texts{"", "", "", "\ufffd"}));
  EXPECT_EQ(pushed("\xf0\x9fz"), (Texts{"", "", "\ufffdz", ""}));
  EXPECT_EQ(pushed("\xe4\xe4\xb8\xad"), (Texts{"", "\ufffd", "", "中", ""}));
  EXPECT_EQ(pushed("\x80\xff"), (Texts{"\ufffd", "\ufffd", ""}));
  EXPECT_EQ(pushed(""), (Texts{""}));
}

TEST(StreamDecoder, SkipsSpecialTokens) {
  const Tokenizer& tokenizer = test::golden_tokenizer();
  const std::vector<int32_t> ids = tokenizer.encode("a<｜User｜>b<think>c");
  StreamDecoder all(tokenizer), text(tokenizer, /*skip_special=*/true);
  std::string with, without;
  for (const int32_t id : ids) with += all.push(id), without += text.push(id);
  EXPECT_EQ(with, "a<｜User｜>b<think>c");
  EXPECT_EQ(without, "ab<think>c") << "<think> is an added token, but not a special one";
}

TEST(StreamDecoder, RestartsAfterFinish) {
  StreamDecoder decoder(byte_tokenizer());
  const auto ids = byte_tokenizer().encode("漢");
  EXPECT_EQ(decoder.push(ids.at(0)), "");
  EXPECT_EQ(decoder.finish(), "\ufffd");
  EXPECT_EQ(decoder.finish(), "");
  EXPECT_EQ(decoder.push(ids.at(0)), "");
  EXPECT_EQ(decoder.push(ids.at(1)), "");
  EXPECT_EQ(decoder.push(ids.at(2)), "漢");
}

// Random ids are mostly broken text: every kind of partial character next to every other.
TEST(StreamDecoder, PiecesJoinToTheFullText) {
  const Tokenizer& tokenizer = test::golden_tokenizer();
  Rng rng(5);
  for (int i = 0; i < 3000; ++i) {
    // The low ids are bytes and short tokens; half of the sequences use only those.
    const int64_t below = i % 2 == 0 ? 300 : tokenizer.vocab_size();
    std::vector<int32_t> ids(static_cast<size_t>(rng.below(30)));
    StreamDecoder decoder(tokenizer);
    std::string joined;
    for (int32_t& id : ids) {
      id = static_cast<int32_t>(rng.below(below));
      const std::string text = decoder.push(id);
      ASSERT_EQ(valid_utf8_prefix(text), text.size());
      joined += text;
    }
    joined += decoder.finish();
    ASSERT_EQ(joined, utf8_lossy(tokenizer.decode(ids)));
  }
}

}  // namespace
}  // namespace dsv4
