#include "dsv4/grammar/tool_grammar.h"

#include <gtest/gtest.h>

#include "dsv4/chat/chat_message.h"
#include "dsv4/chat/output_parser.h"
#include "tests/grammar/grammar_data.h"

namespace dsv4 {
namespace {

std::vector<ToolDefinition> tools() {
  return {{.name = "get",
           .parameters = parse_json(
               R"({"type": "object", "required": ["city"], "additionalProperties": false,
                   "properties": {"city": {"type": "string"}, "days": {"type": "integer",
                   "minimum": 1, "maximum": 14}, "unit": {"enum": ["C", "F"]}}})",
               "test"),
           .strict = true},
          {.name = "now"}};
}

// What the parser of outputs makes of tokens.
ChatMessage parsed(const std::vector<int32_t>& tokens, OutputStage stage, ParseCounts& counts,
                   FinishReason& reason) {
  ChatMessage message;
  OutputParser parser({.stage = stage, .tools = true}, message);
  for (const int32_t id : tokens) {
    if (const auto marker = test::demo_markers().marker(id)) {
      parser.marker(*marker);
    } else {
      parser.text(test::demo_tokenizer().token_bytes(id));
    }
  }
  reason = parser.finish(OutputEnd::kModel);
  counts = parser.counts();
  return message;
}

TEST(ToolGrammar, WhatIsDrawnParsesWithoutARepair) {
  Rng rng(17);
  int drawn = 0;
  for (int i = 0; i < 60; ++i) {
    const bool inside = i % 2 == 0;
    TokenMasks masks(tool_grammar(tools(), {.only = i % 3 == 0 ? "get" : "",
                                            .single = i % 5 == 0,
                                            .inside_block = inside}),
                     test::demo_tree());
    const auto tokens = test::random_output(masks, rng, 600);
    if (!tokens) continue;
    ParseCounts counts;
    FinishReason reason;
    const ChatMessage message =
        parsed(*tokens, inside ? OutputStage::kBlock : OutputStage::kContent, counts, reason);
    ASSERT_EQ(reason, FinishReason::kToolCalls);
    EXPECT_EQ(counts.truncated, 0);
    EXPECT_EQ(message.content, "");
    if (i % 5 == 0) {
      EXPECT_EQ(message.calls.size(), 1u);
    }
    for (const ChatMessage::Call& call : message.calls) {
      EXPECT_TRUE(call.complete);
      const JsonValue arguments = parse_json(call.arguments, "arguments");
      if (call.name != "get") {
        EXPECT_EQ(call.name, "now");
        EXPECT_NE(i % 3, 0);
        continue;
      }
      ASSERT_NE(arguments.find("city"), nullptr) << call.arguments;
      EXPECT_TRUE(arguments.find("city")->is_string());
      if (const JsonValue* days = arguments.find("days")) {
        EXPECT_GE(std::stoi(days->text), 1);
        EXPECT_LE(std::stoi(days->text), 14);
      }
      if (const JsonValue* unit = arguments.find("unit")) {
        EXPECT_TRUE(unit->text == "C" || unit->text == "F") << unit->text;
      }
    }
    ++drawn;
  }
  EXPECT_GT(drawn, 20);
}

// Strings of parameters have no quotes, and the same limits as in JSON.
TEST(ToolGrammar, StringsObeyTheirSchemas) {
  const std::vector<ToolDefinition> all = {
      {.name = "f",
       .parameters = parse_json(
           R"({"properties": {"p": {"type": "string", "minLength": 2, "maxLength": 3},
               "q": {"type": "string", "format": "date"}, "r": {"$ref": "#/$defs/number"},
               "s": {"anyOf": [{"type": "integer"}, {"enum": ["a<b", 7]}]},
               "t": {"type": ["string", "null"], "pattern": "^x+$"}, "u": {"const": "\"q\""},
               "v": {}, "w": {"items": {}}, "x": {"type": "string", "nullable": true}},
               "$defs": {"number": {"type": "number"}}})",
           "test"),
       .strict = true}};
  TokenMasks masks(tool_grammar(all, {.inside_block = true}), test::demo_tree());
  const auto accepts = [&](const std::string& parameter) {
    const std::string name = parameter.substr(0, 1), kind = parameter.substr(2, 1),
                      value = parameter.substr(4);
    TokenMasks::State state = masks.start();
    const std::string text = "<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"" + name +
                             "\" string=\"" + (kind == "t" ? "true" : "false") + "\">" + value +
                             "</｜DSML｜parameter>\n";
    for (const int32_t id : test::demo_tokenizer().encode(text)) {
      if (state != TokenMasks::kDead) state = masks.advance(state, id);
    }
    return state != TokenMasks::kDead;
  };
  for (const char* good :
       {"p t ab", "p t éßé", "q t 2026-11-22", "r f 1.5", "s f 3", "s t a<b", "s f 7", "t t xx",
        "t f null", "u t \"q\"", "v t any", "v f {\"a\": 1}", "w f [1]", "x t y", "x f null"})
    EXPECT_TRUE(accepts(good)) << good;
  for (const char* bad :
       {"p t a", "p t abcd", "p f \"ab\"", "q t today", "q t 2026-13-01", "r t 1", "r t one",
        "s t 3", "s t b", "s t 7", "t t y", "t t null", "u t q", "w t one", "w f 1"})
    EXPECT_FALSE(accepts(bad)) << bad;
}

TEST(ToolGrammar, TextMayComeInsteadWhereItIsAllowed) {
  TokenMasks masks(tool_grammar(tools(), {.text_allowed = true}), test::demo_tree());
  EXPECT_TRUE(test::matches(masks, "Just an answer <b>."));
  EXPECT_TRUE(test::matches(masks, ""));
  TokenMasks required(tool_grammar(tools(), {}), test::demo_tree());
  EXPECT_EQ(required.advance_bytes(required.start(), "Just"), TokenMasks::kDead);
}

TEST(ToolGrammar, UnsupportedSchemasOfStrictToolsAreRefused) {
  std::vector<ToolDefinition> bad = tools();
  bad[0].parameters =
      parse_json(R"({"properties": {"a": {"type": "string", "$dynamicRef": "#"}}})", "test");
  TokenMasks by_tags(tool_grammar(bad, {.schemas = ToolSchemas::kNone}), test::demo_tree());
  EXPECT_NE(by_tags.advance_bytes(by_tags.start(), "\n\n<"), TokenMasks::kDead);
  EXPECT_THROW(tool_grammar(bad, {}), RequestError) << "a string is no less bound";
  bad[0].parameters = parse_json(R"({"properties": {}, "required": ["a"]})", "test");
  EXPECT_THROW(tool_grammar(bad, {}), RequestError);
}

}  // namespace
}  // namespace dsv4
