#include "dsv4/text/pattern.h"

#include <gtest/gtest.h>

#include "dsv4/base/error.h"
#include "dsv4/text/pre_tokenizer.h"

namespace dsv4 {
namespace {

using Pieces = std::vector<std::string>;

Pieces split(const std::vector<std::string>& patterns, std::string_view text) {
  Regex::Scratch scratch;
  std::vector<std::string_view> views;
  PreTokenizer(patterns).split(text, scratch, views);
  return {views.begin(), views.end()};
}

std::string error_of(const std::string& pattern) {
  try {
    Regex regex(pattern);
  } catch (const Error& error) {
    return std::string(name(error.code())) + ": " + error.what();
  }
  return "no error";
}

TEST(PreTokenizer, KeepsMatchesAndGaps) {
  EXPECT_EQ(split({"a+"}, "baac"), (Pieces{"b", "aa", "c"}));
  EXPECT_EQ(split({"a"}, "aa"), (Pieces{"a", "a"}));
  EXPECT_EQ(split({"a"}, ""), Pieces{});
  EXPECT_EQ(split({}, "abc"), Pieces{"abc"});
  // The second pattern gets the pieces of the first one at a time and cannot look past their ends.
  EXPECT_EQ(split({"1", " +(?!x)"}, "  1  x"), (Pieces{"  ", "1", " ", " x"}));
}

TEST(Pattern, WhiteSpaceFollowsUnicode) {
  EXPECT_EQ(split({"\\s+"}, "a\u0085\u00a0\u3000b"), (Pieces{"a", "\u0085\u00a0\u3000", "b"}));
  EXPECT_EQ(split({"\\s+"}, "a\u180e\u200b\ufeffb"), (Pieces{"a\u180e\u200b\ufeffb"}));
  EXPECT_EQ(split({"[^\\S]+"}, "a b"), (Pieces{"a", " ", "b"}));
}

// U+1FAE8 (shaking face) and U+31350 (Han extension H) were added in Unicode 15, U+10D40 (a digit)
// in 16.
TEST(Pattern, MatchesNewCodePoints) {
  EXPECT_EQ(split({"\\p{S}"}, "a\U0001fae8b"), (Pieces{"a", "\U0001fae8", "b"}));
  EXPECT_EQ(split({"[\\p{L}\\p{M}]+"}, "1\U00031350a1"), (Pieces{"1", "\U00031350a", "1"}));
  EXPECT_EQ(split({"\\p{N}{1,3}"}, "a\U00010d40b"), (Pieces{"a", "\U00010d40", "b"}));
  EXPECT_EQ(split({"[^\\p{L}]"}, "\U00031350\U0001fae8"), (Pieces{"\U00031350", "\U0001fae8"}));
}

TEST(Pattern, NamesUnsupportedConstructs) {
  const auto rejected = [](const std::string& pattern, std::string_view why) {
    const std::string error = error_of(pattern);
    EXPECT_NE(error.find(why), error.npos) << error;
    EXPECT_TRUE(error.starts_with("unsupported: pattern '")) << error;
  };
  for (const char* group : {"(?i:a)", "(?<=a)b", "(?<n>a)", "(?m)a", "(*UTF)a", "(?"}) {
    rejected(group, "only (?: (?= (?! are supported");
  }
  for (const char* line : {"^a", "a$", "a.b"}) rejected(line, "^ $ . are not supported");
  for (const char* escape :
       {"\\d", "\\w", "\\h", "\\v", "\\K", "\\x41", "\\1", "\\Qa\\E", "\\P{L}"}) {
    rejected(escape, "the escape \\");
  }
  for (const char* category :
       {"\\p{Lu}", "\\p{Han}", "\\p{^L}", "\\p", "\\pL", "\\p{X}", "\\p{L"}) {
    rejected(category, "only \\p{L} \\p{M} \\p{N} \\p{P} \\p{S}");
  }
  for (const char* repeat : {"a{", "a{,3}", "a{x}", "a{1", "a{1,"})
    rejected(repeat, "{ must start");
  rejected("a{2}+", "after {...}");
  rejected("a{2}?", "after {...}");
  rejected("[a[b]]", "must be escaped");
  rejected("[[:alpha:]]", "must be escaped");
  rejected("[a&&b]", "&&");
  rejected("[]a]", "empty character class");
  rejected("[a", "without ]");
  rejected("a\\", "ends with a backslash");
  rejected("a*", "can match the empty string");
  rejected("", "can match the empty string");
}

TEST(Pattern, ReportsPatternsThatDoNotCompile) {
  for (const char* pattern : {"(a", "a)", "[z-a]", "*a", "a{3,2}"}) {
    EXPECT_TRUE(error_of(pattern).starts_with("bad input: pattern '")) << error_of(pattern);
  }
}

// The result is an error: neither hours of backtracking nor a silently missed match.
TEST(Pattern, StopsRunawayPattern) {
  EXPECT_THROW(split({"(?:(?:a+)+)+b"}, std::string(60, 'a') + "cb"), Error);
}

// Every match is cheap enough by itself, but there are as many as bytes.
TEST(Pattern, StopsManyExpensiveMatches) {
  EXPECT_THROW(split({"(?:a?){20}b|a"}, std::string(60000, 'a')), Error);
  EXPECT_THROW(split({"(?:a?){16}b|a"}, std::string(20000, 'a')), Error);
}

// One long match in a long text, and many short ones.
TEST(Pattern, LongTextsHaveEnoughSteps) {
  EXPECT_EQ(split({"\\s+(?!\\S)|\\s+"}, std::string(300000, ' ') + "x").size(), 3u);
  EXPECT_EQ(split({"[a-z]+"}, std::string(300000, 'a')).size(), 1u);
}

}  // namespace
}  // namespace dsv4
