#include "dsv4/base/quote.h"

#include <gtest/gtest.h>

#include "dsv4/base/rng.h"

namespace dsv4 {
namespace {

TEST(Quotable, ControlAndForeignBytesBecomeQuestionMarks) {
  EXPECT_EQ(quotable("a\x1b[2J\nb\x7f\xff"), "a?[2J?b??");
  EXPECT_EQ(quotable(std::string(500, 'x')), std::string(kMaxQuote, 'x') + "...");
}

TEST(Printable, KeepsValidText) {
  const std::string text = "prompt: \u4f60\u597d, na\u00efve \U0001f600";
  EXPECT_EQ(printable(text, 1000), text);
}

TEST(Printable, ReplacesControlsAndInvalidBytes) {
  EXPECT_EQ(printable("\x1b]0;pwned\x07", 100), "?]0;pwned?");
  EXPECT_EQ(printable("one\ntwo\r", 100), "one?two?");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J",
                      100),
            "?2J")
      << "C1: the 8-bit form of ESC [";
  EXPECT_EQ(printable("\xff\xc3)", 100),
            "?"
            "?)");
  EXPECT_EQ(printable("\xed\xa0\x80", 100), "???") << "a surrogate";
  EXPECT_EQ(printable("\xc0\x9b", 100), "??") << "an overlong ESC";
  EXPECT_EQ(printable("a\u202eb\u2066c", 100), "a?b?c") << "text in reverse";
}

TEST(Printable, CutsBetweenCharacters) {
  EXPECT_EQ(printable("\u4f60\u597d", 5), "\u4f60...");
  EXPECT_EQ(printable("abc", 3), "abc");
}

TEST(Printable, RandomBytesNeverHoldAControl) {
  Rng rng(7);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (int i = 0; i < 40; ++i) text += static_cast<char>(rng.below(256));
    const std::string shown = printable(text, 60);
    EXPECT_EQ(printable(shown, 1000), shown);
    for (const char c : shown) EXPECT_FALSE(static_cast<unsigned char>(c) < 0x20 || c == 0x7f);
  }
}

}  // namespace
}  // namespace dsv4
