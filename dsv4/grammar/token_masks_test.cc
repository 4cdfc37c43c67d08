#include "dsv4/grammar/token_masks.h"

#include <gtest/gtest.h>

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

TEST(TokenMasks, AMaskWithoutATokenIsAnError) {
  // A tab is a byte of the vocabulary, but after it nothing can come and nothing may end.
  AutomatonBuilder builder;
  const RuleId rule = builder.declare();
  builder.literal(builder.begin(rule), "\t");
  TokenMasks dead_end(builder.finish(), test::demo_tree());
  std::vector<uint32_t> mask(test::demo_tree()->words());
  EXPECT_EQ(dead_end.advance_bytes(dead_end.start(), "\t"), TokenMasks::kDead);
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

// Two calls of the same rule at the end of each rule are one stack. Where something follows, there
// are 2^depth stacks: an error before they take seconds or gigabytes.
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
  try {
    TokenMasks many(chain(40, true), test::demo_tree());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadInput) << error.what();
  }
  EXPECT_LT(test::cpu_seconds() - begin, 3);
}

TEST(TokenMasks, RefusesRulesThatBeginWithThemselves) {
  EXPECT_THROW(schema_of(R"({"$ref": "#"})"), RequestError);
  EXPECT_THROW(schema_of(R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})"), RequestError);
}

}  // namespace
}  // namespace dsv4
