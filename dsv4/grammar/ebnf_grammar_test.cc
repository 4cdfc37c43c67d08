#include "dsv4/grammar/ebnf_grammar.h"

#include <gtest/gtest.h>

#include "dsv4/base/error.h"
#include "dsv4/text/utf8.h"
#include "tests/grammar/grammar_data.h"

namespace dsv4 {
namespace {

bool accepts(const std::string& grammar, const std::string& text) {
  TokenMasks masks(ebnf_grammar(grammar), test::demo_tree());
  return test::matches(masks, text);
}

TEST(EbnfGrammar, AcceptsWhatItDescribes) {
  const std::string list = R"(# numbers
number ::= "-"? [1-9] [0-9]{0,2}   # at most three digits
root   ::= "none" | number
           ("," " "? number)*
)";
  for (const char* good : {"none", "7", "-120", "1,2, -3"})
    EXPECT_TRUE(accepts(list, good)) << good;
  for (const char* bad : {"", "0", "1000", "1,", "1 ,2", "nonenone", "--1"})
    EXPECT_FALSE(accepts(list, bad)) << bad;
}

TEST(EbnfGrammar, TextsSetsAndEscapes) {
  const std::string all = R"(root ::= "a\"b" 'c' "\x41\u00e9\U0001F600\n" [^a-z\]\n]+ [\-^é-ü] .?)";
  EXPECT_TRUE(accepts(all, "a\"bcAé😀\nXY9é"));
  EXPECT_TRUE(accepts(all, "a\"bcAé😀\n漢-é"));
  EXPECT_TRUE(accepts(all, "a\"bcAé😀\nX^"));
  EXPECT_FALSE(accepts(all, "a\"bcAé😀\nx-"));
  EXPECT_FALSE(accepts(all, "a\"bcAé😀\n]-"));
}

TEST(EbnfGrammar, Recursion) {
  const std::string braces = "root ::= braces\nbraces ::= (\"(\" braces \")\")*";
  EXPECT_TRUE(accepts(braces, ""));
  EXPECT_TRUE(accepts(braces, "(()())()"));
  EXPECT_FALSE(accepts(braces, "(()"));
}

TEST(EbnfGrammar, Repetitions) {
  for (const auto& [mark, least, most] : {std::tuple("*", 0, 9),
                                          {"+", 1, 9},
                                          {"?", 0, 1},
                                          {"{3}", 3, 3},
                                          {"{2,}", 2, 9},
                                          {"{0,2}", 0, 2}}) {
    const std::string grammar = fmt::format("root ::= (\"a\" | \"b\"){}", mark);
    for (int n = 0; n < 6; ++n)
      EXPECT_EQ(accepts(grammar, std::string(static_cast<size_t>(n), n % 2 == 0 ? 'a' : 'b')),
                n >= least && n <= most)
          << mark << n;
  }
}

TEST(EbnfGrammar, ErrorsSayWhere) {
  const auto error = [](const std::string& grammar) -> std::string {
    try {
      ebnf_grammar(grammar);
    } catch (const Error& caught) {
      return caught.code() == ErrorCode::kBadInput ? caught.what() : "another code";
    }
    return "accepted";
  };
  for (const auto& [grammar, what] : std::vector<std::pair<std::string, std::string>>{
           {"", "no rule is named root"},
           {"a ::= \"x\"", "no rule is named root"},
           {"root ::= a", "line 1: no rule is named a"},
           {"root ::= \"x\"\nroot ::= \"y\"", "two rules are named root"},
           {"root ::= root \"x\"", "refers to itself without anything"},
           {"root ::= \"x", "line 1: a text or set that does not end"},
           {"root ::=\n  \"x\" ]", "line 2: ']' cannot stand here"},
           {"root ::= [z-a]", "ends before it begins"},
           {"root ::= []", "an empty set"},
           {"root ::= \"\\q\"", "an escape that does not exist"},
           {"root ::= \"\\ud800\"", "not a character"},
           {"root ::= (\"x\"", "a group without )"},
           {"root ::= \"x\" )", "want a rule"},
           {"root ::= \"x\"{3,2}", "at most fewer"},
           {"root ::= \"x\"{20000}", "want a count up to 10000"},
           {"root = \"x\"", "want ::="},
           {"root ::= \"\xff\"", "not valid UTF-8"},
           {"root ::= " + std::string(200, '('), "nested deeper"},
           {"root ::= ((\"x\"{9999}){9999}){9999}", "too large"},
           {"root ::= (" + std::string(60'000, '|') + "){10000}", "more than 1000000 edges"},
           {std::string(70'000, ' '), "longer than"}})
    EXPECT_NE(error(grammar).find(what), std::string::npos)
        << grammar.substr(0, 60) << ": " << error(grammar);
}

// A request may hold any of these: each took 2 to 13 seconds, or gigabytes, when its cost was the
// square of its length.
TEST(EbnfGrammar, CostsWhatItsLengthSays) {
  std::string chain = "root ::= 0";  // every rule may be empty, because the last one may
  for (int i = 0; i < 5500; ++i) chain += fmt::format("\n{:x}::={:x}", i, i + 1);
  chain += "\n157c::=\"\"";
  std::string points = "root ::= [";
  for (char32_t c = 0xd7fe; c > 0x3000; c -= 2) append_utf8(points, c);
  const std::string grammars[] = {chain, points + "]", "root ::= (\"\"{0,10000}){10000}",
                                  "root ::= (" + std::string(30'000, '"') + "){10000}"};
  for (const std::string& grammar : grammars) {
    const auto tree = test::demo_tree();
    const double begin = test::cpu_seconds();
    TokenMasks masks(ebnf_grammar(grammar), tree);
    EXPECT_LT(test::cpu_seconds() - begin, 0.5) << grammar.substr(0, 60);
  }
  // A piece without text, and what it may be repeated into, is the empty text.
  EXPECT_TRUE(accepts("root ::= (\"\"{2,9} \"a\" \"\"*){2}", "aa"));
  EXPECT_FALSE(accepts("root ::= (\"\"{2,9} \"a\" \"\"*){2}", "a"));
}

TEST(EbnfGrammar, RulesThatMayBeEmptyBeforeARecursion) {
  const auto recursive = [](const std::string& grammar) {
    try {
      ebnf_grammar(grammar);
    } catch (const Error& error) {
      return std::string(error.what()).find("refers to itself") != std::string::npos;
    }
    return false;
  };
  // Whether b may be empty is known only after c, and c's rule comes last.
  EXPECT_TRUE(recursive("root ::= b root \"x\"\nb ::= c\nc ::= \"y\"?"));
  EXPECT_FALSE(recursive("root ::= b root? \"x\"\nb ::= c\nc ::= \"y\""));
  EXPECT_TRUE(recursive("root ::= a\na ::= b a?\nb ::= c c\nc ::= \"y\"*"));
  EXPECT_TRUE(recursive("root ::= a\na ::= b\nb ::= \"\" a"));
}

}  // namespace
}  // namespace dsv4
