#include "dsv4/grammar/regex_grammar.h"

#include <gtest/gtest.h>

#include <regex>

#include "dsv4/text/utf8.h"
#include "tests/grammar/grammar_data.h"

namespace dsv4 {
namespace {

TokenMasks compile(std::string_view pattern) {
  return TokenMasks(regex_format_grammar(pattern, "test"), test::demo_tree());
}

bool matches(std::string_view pattern, std::string_view text) {
  TokenMasks masks = compile(pattern);
  return test::matches(masks, text);
}

TEST(RegexGrammar, IsByCodePointAndAnchored) {
  EXPECT_TRUE(matches("a.c", "abc"));
  EXPECT_TRUE(matches("a.c",
                      "a\xc3\xa9"
                      "c"));
  EXPECT_FALSE(matches("a.c",
                       "a\xc3"
                       "c"));
  EXPECT_FALSE(matches("a.c", "a\nc"));
  EXPECT_FALSE(matches("b", "abc"));
  EXPECT_TRUE(matches("^abc$", "abc"));
  EXPECT_TRUE(matches("[\\u{1F600}-\\u{1F64F}]", "\xf0\x9f\x98\x80"));
  EXPECT_TRUE(matches("\\u00e9\\x41",
                      "\xc3\xa9"
                      "A"));
  EXPECT_TRUE(matches("[^a]", "\xf4\x8f\xbf\xbf"));
  EXPECT_FALSE(matches("[^a]", "\xed\xa0\x80")) << "a surrogate";
  EXPECT_TRUE(matches("(?:ab){2,3}", "ababab"));
  EXPECT_FALSE(matches("(?:ab){2,3}", "ab"));
  EXPECT_TRUE(matches("a{2,}?b*?", "aaaabb"));
  EXPECT_TRUE(matches("\\.\\*\\[", ".*["));
  EXPECT_TRUE(matches("", ""));
  EXPECT_TRUE(matches("(^a|^b)c$|d", "bc"));
  EXPECT_TRUE(matches("(^|a)b($|c)", "abc"));
  EXPECT_TRUE(matches("a|", ""));
  EXPECT_TRUE(matches("[\\b\\-\\]]+", "\b-]"));
}

// As JSON Schema reads patterns: anywhere in the text where no ^ or $ says otherwise.
TEST(RegexGrammar, SearchesAndIntersects) {
  const auto dfa = [](std::string_view pattern) {
    return std::make_shared<TextDfa>(read_regex(pattern, RegexScope::kSearch));
  };
  EXPECT_TRUE(dfa("b")->contains("abc"));
  EXPECT_FALSE(dfa("^b")->contains("abc"));
  EXPECT_TRUE(dfa("^a|d$")->contains("abc"));
  EXPECT_FALSE(dfa("^(a|d)$")->contains("abc"));
  AutomatonBuilder builder;
  const RuleId rule = builder.declare();
  TextWriter writer(builder, RegexText::kRaw);
  builder.end(writer.add_one(
      builder.begin(rule), {{dfa("^[a-c]+$"), true}, {dfa("b"), true}, {dfa("cc"), false}}, 2, 4));
  TokenMasks masks(builder.finish(), test::demo_tree());
  for (const char* text : {"ab", "bcbc", "abca"}) EXPECT_TRUE(test::matches(masks, text)) << text;
  for (const char* text : {"b", "ac", "bcc", "abcab", "bd"})
    EXPECT_FALSE(test::matches(masks, text)) << text;
}

TEST(RegexGrammar, RefusesByName) {
  for (const char* pattern :
       {"(?=a)", "(?<n>a)", "\\1", "\\bx", "\\p{L}", "a**", "*a", "a{3,2}", "a{10001}", "(a", "a)",
        "[z-a]", "[a", "a\\", "a^b", "a$b", "\\u12", "[]", "\\q"}) {
    EXPECT_THROW(regex_format_grammar(pattern, "test"), RequestError) << pattern;
  }
  std::string deep(200, '('), large = "(((a{100}){100}){100}){100}";
  deep += "a" + std::string(200, ')');
  EXPECT_THROW(regex_format_grammar(deep, "test"), RequestError);
  EXPECT_THROW(regex_format_grammar(large, "test"), RequestError);
}

std::string random_pattern(Rng& rng, int depth) {
  const auto atom = [&]() -> std::string {
    switch (rng.below(depth > 0 ? 8 : 5)) {
      case 0:
        return "a";
      case 1:
        return "b";
      case 2:
        return "[^a]";
      case 3:
        return "[b-d]";
      case 4:
        return ".";
      default:
        return (rng.below(2) ? "(" : "(?:") + random_pattern(rng, depth - 1) + ")";
    }
  };
  std::string out;
  for (int64_t i = rng.below(3) + 1; i > 0; --i) {
    out += atom();
    const char* const kQuantifiers[] = {"", "", "", "*", "+", "?", "{2}", "{1,3}", "{2,}"};
    out += kQuantifiers[rng.below(9)];
  }
  return rng.below(4) == 0 ? out + "|" + atom() : out;
}

TEST(RegexGrammar, AgreesWithTheStandardLibrary) {
  Rng rng(7);
  int matched = 0;
  for (int i = 0; i < 300; ++i) {
    const std::string pattern = random_pattern(rng, 2);
    const std::regex expected(pattern);
    TokenMasks masks = compile(pattern);
    for (int k = 0; k < 60; ++k) {
      std::string text;
      for (int64_t size = rng.below(7); size > 0; --size)
        text += static_cast<char>('a' + rng.below(4));
      const bool wanted = std::regex_match(text, expected);
      ASSERT_EQ(test::matches(masks, text), wanted) << pattern << " on " << text;
      matched += wanted;
    }
  }
  EXPECT_GT(matched, 1000);
}

// Each took seconds to minutes when a class was read again for each repetition.
TEST(RegexGrammar, CostsWhatItsLengthSays) {
  std::string points = "[^";
  for (char32_t c = 0x5a2e; c > 0x3000; c -= 2) append_utf8(points, c);
  const std::string twice = "([" + std::string(16'000, 'a') + "]{1000}){100}";
  for (const std::string& pattern : {points + "]{1,10}", twice}) {
    test::demo_tree();
    const double begin = test::cpu_seconds();
    TokenMasks masks = compile(pattern);
    EXPECT_LT(test::cpu_seconds() - begin, 1.5) << pattern.substr(0, 60);
  }
  EXPECT_THROW(compile("(" + std::string(16'000, '|') + "){10000}"), RequestError);
  EXPECT_TRUE(matches("([ab]{2}[^ab]){2}", "abxbay"));
  EXPECT_FALSE(matches("([ab]{2}[^ab]){2}", "abxbab"));
}

}  // namespace
}  // namespace dsv4
