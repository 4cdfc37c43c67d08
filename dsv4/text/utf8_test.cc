#include "dsv4/text/utf8.h"

#include <gtest/gtest.h>

#include "dsv4/base/rng.h"
#include "dsv4/text/byte_alphabet.h"

namespace dsv4 {
namespace {

// Expected values: Python's bytes.decode("utf-8", errors="replace").
TEST(Utf8, ReplacesLikePython) {
  const std::string r(kReplacementCharacter);
  EXPECT_EQ(utf8_lossy(""), "");
  EXPECT_EQ(utf8_lossy("plain, größer, 漢字, 😀"), "plain, größer, 漢字, 😀");
  EXPECT_EQ(utf8_lossy("a\x80z"), "a" + r + "z");
  EXPECT_EQ(utf8_lossy("\xe4\xb8"), r);         // cut off
  EXPECT_EQ(utf8_lossy("\xe4\xb8z"), r + "z");  // cut short
  EXPECT_EQ(utf8_lossy("\xf0\x9f\x98\xf0\x9f\x98\x80"), r + "😀");
  EXPECT_EQ(utf8_lossy("\xc0\xaf"), r + r);                  // overlong
  EXPECT_EQ(utf8_lossy("\xe0\x80\x80"), r + r + r);          // overlong
  EXPECT_EQ(utf8_lossy("\xed\xa0\x80"), r + r + r);          // surrogate
  EXPECT_EQ(utf8_lossy("\xf4\x90\x80\x80"), r + r + r + r);  // above U+10FFFF
  EXPECT_EQ(utf8_lossy("\xf5\xff"), r + r);
  EXPECT_EQ(utf8_lossy("\xf1\x80\x80\xe1\x80\xc2z"), r + r + r + "z");
}

TEST(Utf8, EncodesEveryCodePoint) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    std::string text;
    append_utf8(text, c);
    const Utf8Unit unit = next_utf8(text);
    if (c >= 0xd800 && c < 0xe000) {
      ASSERT_EQ(unit.kind, Utf8Kind::kInvalid);
      continue;
    }
    ASSERT_EQ(unit.kind, Utf8Kind::kValid);
    ASSERT_EQ(static_cast<size_t>(unit.size), text.size());
    ASSERT_EQ(decode_utf8(text), c);
    for (size_t size = 1; size < text.size(); ++size) {
      ASSERT_EQ(next_utf8(text.substr(0, size)).kind, Utf8Kind::kIncomplete);
    }
  }
}

// Tests the eight-bytes-at-once path with a bad byte at every position.
TEST(Utf8, FindsTheFirstBadByte) {
  for (size_t size = 0; size < 40; ++size) {
    for (size_t bad = 0; bad <= size; ++bad) {
      std::string text(size, 'x');
      if (bad < size) text[bad] = '\x9f';
      ASSERT_EQ(valid_utf8_prefix(text), bad);
    }
  }
}

TEST(ByteAlphabet, RoundTrips) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string one(1, static_cast<char>(byte));
    ASSERT_EQ(bytes_of_token_text(token_text_of_bytes(one)), one);
  }
  EXPECT_EQ(token_text_of_bytes(" a\n"), "ĠaĊ");
  EXPECT_EQ(bytes_of_token_text("ä½ł"), "你");
  EXPECT_FALSE(bytes_of_token_text("a b"));  // a space is written as another character
  EXPECT_FALSE(bytes_of_token_text("漢"));
  EXPECT_FALSE(bytes_of_token_text("\u0144"));  // one past the last
}

}  // namespace
}  // namespace dsv4
