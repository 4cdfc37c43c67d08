#include "dsv4/grammar/token_masks.h"

#include <gtest/gtest.h>

#include "dsv4/grammar/ebnf_grammar.h"
#include "dsv4/grammar/tool_grammar.h"
#include "tests/grammar/grammar_data.h"

namespace dsv4 {
namespace {

Automaton schema_of(const std::string& text) {
  return json_schema_grammar(parse_json(text, "test"), JsonSpaces::kSome, "test");
}

// Every mask on random ways through the grammar equals one token tried after the other.
void expect_brute_force(TokenMasks& masks, Rng& rng, int steps) {
  std::vector<uint32_t> mask(test::demo_tree()->words());
  const int32_t eos = test::demo_markers().require(Marker::kEos);
  TokenMasks::State state = masks.start();
  for (int i = 0; i < steps; ++i) {
    masks.mask(state, mask);
    std::vector<int32_t> expected;
    for (int32_t token = 0; token < test::demo_tokenizer().vocab_size(); ++token) {
      const bool fits =
          token == eos ? masks.accepts(state) : masks.advance(state, token) != TokenMasks::kDead;
      if (fits) expected.push_back(token);
    }
    ASSERT_EQ(test::allowed_tokens(mask), expected) << "step " << i;
    const int32_t token =
        expected[static_cast<size_t>(rng.below(static_cast<int64_t>(expected.size())))];
    state = token == eos ? masks.start() : masks.advance(state, token);
  }
}

TEST(TokenMasks, EqualBruteForce) {
  Rng rng(3);
  TokenMasks object(json_object_grammar(), test::demo_tree());
  expect_brute_force(object, rng, 60);
  TokenMasks schema(
      schema_of(R"({"type": "object", "required": ["a"], "properties": {"a": {"type": "string",
                    "maxLength": 5}, "b": {"type": "array", "items": {"type": "integer"}}}})"),
      test::demo_tree());
  expect_brute_force(schema, rng, 60);
  const std::vector<ToolDefinition> tools = {{.name = "f"}, {.name = "get"}};
  TokenMasks calls(tool_grammar(tools, {}), test::demo_tree());
  expect_brute_force(calls, rng, 60);
  TokenMasks ambiguous(ebnf_grammar("root ::= s{1,3}\ns ::= e s s | \"a\" s? | \"bc\" | e \"d\"\n"
                                    "e ::= \"x\"? \"y\""),
                       test::demo_tree());
  expect_brute_force(ambiguous, rng, 60);
}

// Symbols that a state reads in the same way share a step: each leads where it leads in a run that
// reads no other.
TEST(TokenMasks, EverySymbolAsIfAlone) {
  const Automaton grammar = regex_format_grammar("([a-m]x|[h-z]y|q|[^a-f]{2}z)*é?", "test");
  TokenMasks shared(grammar, test::demo_tree());
  const auto after = [](TokenMasks& masks, std::string_view text) {
    return masks.advance_bytes(masks.start(), text);
  };
  for (const std::string_view path : {"", "a", "h", "q", "qq", "0", "\xc3", "hxk"}) {
    for (int first = 0; first < 256; ++first) {
      for (const char second : {'a', 'x', 'y', 'z', '\xa9'}) {
        const std::string text = std::string(path) + static_cast<char>(first);
        TokenMasks alone(grammar, test::demo_tree());
        const TokenMasks::State a = after(alone, text), s = after(shared, text);
        ASSERT_EQ(alone.accepts(a), shared.accepts(s)) << path << " and byte " << first;
        ASSERT_EQ(alone.advance_bytes(a, {&second, 1}) == TokenMasks::kDead,
                  shared.advance_bytes(s, {&second, 1}) == TokenMasks::kDead)
            << path << " and bytes " << first << ", " << second;
      }
    }
  }
}

// A state past the limit is an error each time that it is reached: nothing of it is kept.
TEST(TokenMasks, TooManyStatesStayAnError) {
  TokenMasks masks(regex_format_grammar("[ab]*a[ab]{20}", "test"), test::demo_tree());
  Rng rng(5);
  TokenMasks::State state = masks.start();
  std::string byte;
  bool failed = false;
  while (!failed) {
    byte = rng.below(2) == 0 ? "a" : "b";
    try {
      state = masks.advance_bytes(state, byte);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kResource);
      failed = true;
    }
    ASSERT_LE(masks.states(), TokenMasks::kMaxStates);
  }
  EXPECT_THROW(masks.advance_bytes(state, byte), Error);
  EXPECT_THROW(masks.advance_bytes(state, byte + byte), Error);
}

TEST(TokenMasks, AddedTokensNeverPass) {
  TokenMasks any(regex_format_grammar("[^\\u0000]*", "test"), test::demo_tree());
  std::vector<uint32_t> mask(test::demo_tree()->words());
  any.mask(any.start(), mask);
  const auto allowed = test::allowed_tokens(mask);
  EXPECT_GT(allowed.size(), 1000u);
  for (const int32_t token : allowed) {
    const auto marker = test::demo_markers().marker(token);
    EXPECT_TRUE(!marker || *marker == Marker::kEos) << token;
  }
}

TEST(TokenMasks, KeepsWhatItComputedWithinItsBound) {
  TokenMasks small(json_object_grammar(), test::demo_tree(), 1);  // one mask
  TokenMasks large(json_object_grammar(), test::demo_tree());
  Rng rng(5);
  std::vector<uint32_t> a(test::demo_tree()->words()), b(a.size());
  TokenMasks::State x = small.start(), y = large.start();
  for (int i = 0; i < 50; ++i) {
    small.mask(x, a);
    large.mask(y, b);
    ASSERT_EQ(a, b);
    auto allowed = test::allowed_tokens(a);
    std::erase(allowed, test::demo_markers().require(Marker::kEos));
    if (allowed.empty()) break;
    const int32_t token =
        allowed[static_cast<size_t>(rng.below(static_cast<int64_t>(allowed.size())))];
    x = small.advance(x, token);
    y = large.advance(y, token);
  }
}

// What leads to no whole text is not in the grammar: an answer cannot run into it.
TEST(TokenMasks, DeadEndsAreDropped) {
  TokenMasks masks(ebnf_grammar("root ::= \"a\" | \"b\" endless\nendless ::= \"c\" endless"),
                   test::demo_tree());
  EXPECT_TRUE(test::matches(masks, "a"));
  EXPECT_EQ(masks.advance_bytes(masks.start(), "b"), TokenMasks::kDead);
  AutomatonBuilder builder;
  builder.literal(builder.begin(builder.declare()), "\t");
  EXPECT_THROW(builder.finish(), Error) << "no text at all";
}

// Each text has exponentially many readings, and the stacks of all of them are few sets.
TEST(TokenMasks, AmbiguousGrammarsCostLittle) {
  const char* const kGrammars[] = {
      "root ::= x x x x x x x x x x x x\nx ::= [a-z ] x x | [a-z ] x | [a-z ] | \"QJ\"",
      "root ::= s\ns ::= [a-z] s s s s | [a-z] s s s | [a-z] s s | [a-z] s | [a-z] | \"QJ\"",
      "root ::= e\ne ::= t | t \"+\" e | t \"+\" t \"+\" e\nt ::= [a-z] | \"(\" e \")\""};
  std::vector<uint32_t> mask(test::demo_tree()->words());
  for (const char* const grammar : kGrammars) {
    TokenMasks masks(ebnf_grammar(grammar), test::demo_tree());
    TokenMasks::State state = masks.start();
    uint64_t steps = 0;
    for (int i = 0; i < 60; ++i) {
      steps += masks.mask(state, mask);
      state = masks.advance_bytes(state, i % 2 == 0 || grammar[9] != 'e' ? "b" : "+");
      ASSERT_NE(state, TokenMasks::kDead) << grammar << i;
    }
    EXPECT_LT(steps, 400'000u) << grammar;
    EXPECT_LT(masks.bytes(), size_t{16} << 20) << grammar;
  }
}

// Without limits the stacks of these would be 2^n and their sets still many: an error in bounded
// time and memory, after which the grammar can be used where it is cheap.
TEST(TokenMasks, TooMuchWorkForOneTokenIsAnError) {
  std::string grammar = "root ::= a0";
  for (int i = 0; i < 700; ++i) {
    grammar += fmt::format("\na{} ::= [a-z] a{} a{} \"{}\" | [a-z] a{} | [a-z] a{} | \"x\"", i,
                           (i * 7 + 1) % 700, (i * 13 + 5) % 700, i, (i * 31 + 2) % 700,
                           (i * 101 + 3) % 700);
  }
  TokenMasks masks(ebnf_grammar(grammar), test::demo_tree());
  TokenMasks::State state = masks.start();
  std::vector<uint32_t> mask(test::demo_tree()->words());
  bool failed = false;
  for (int i = 0; i < 60 && !failed; ++i) {
    try {
      masks.mask(state, mask);
      state = masks.advance_bytes(state, "b");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kResource);
      failed = true;
    }
    ASSERT_LE(masks.bytes(), TokenMasks::kMaxBytes);
  }
  EXPECT_TRUE(failed);
  EXPECT_NO_THROW(masks.mask(masks.start(), mask));
}

// A step into very many places takes time in proportion to them.
TEST(TokenMasks, ManyPlacesAtOnce) {
  AutomatonBuilder builder;
  const NodeId start = builder.begin(builder.declare()), end = builder.node();
  for (int i = 0; i < 100'000; ++i) {
    const NodeId place = builder.node();
    builder.empty_edge(start, place);
    builder.symbol_edge(place, byte_range('x', 'z'), end);
  }
  builder.end(end);
  const auto tree = test::demo_tree();
  const double begin = test::cpu_seconds();
  TokenMasks masks(builder.finish(), tree);
  EXPECT_TRUE(test::matches(masks, "y"));
  EXPECT_FALSE(test::matches(masks, "w"));
  EXPECT_LT(test::cpu_seconds() - begin, 1);
}

// Two calls of the same rule: 2^depth ways to one text, and as many stacks as rules.
TEST(TokenMasks, TwoWaysThroughManyRules) {
  const auto chain = [](int depth, bool followed) {
    AutomatonBuilder builder;
    RuleId rule = builder.declare();
    for (int i = 0; i < depth; ++i) {
      const RuleId next = builder.declare();
      const NodeId from = builder.begin(rule), end = builder.node();
      for (int way = 0; way < 2; ++way) {
        const NodeId after = builder.call(from, next);
        builder.empty_edge(followed ? builder.literal(after, ",") : after, end);
      }
      builder.end(end);
      rule = next;
    }
    builder.end(builder.literal(builder.begin(rule), "x"));
    return builder.finish();
  };
  const double begin = test::cpu_seconds();
  TokenMasks masks(chain(3000, false), test::demo_tree());
  EXPECT_TRUE(test::matches(masks, "x"));
  TokenMasks some(chain(10, true), test::demo_tree());
  EXPECT_TRUE(test::matches(some, "x,,,,,,,,,,"));
  EXPECT_FALSE(test::matches(some, "x,,,,,,,,,"));
  TokenMasks many(chain(40, true), test::demo_tree());
  EXPECT_TRUE(test::matches(many, "x" + std::string(40, ',')));
  EXPECT_FALSE(test::matches(many, "x" + std::string(41, ',')));
  EXPECT_LT(test::cpu_seconds() - begin, 3);
}

TEST(TokenMasks, RefusesRulesThatBeginWithThemselves) {
  EXPECT_THROW(schema_of(R"({"$ref": "#"})"), RequestError);
  EXPECT_THROW(schema_of(R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})"), RequestError);
}

}  // namespace
}  // namespace dsv4
