// Which requests are accepted as what, and which are refused (docs/spec/serving.md 1.2, 1.4).

#include "dsv4/chat/request.h"

#include <gtest/gtest.h>

#include "dsv4/chat/tools.h"
#include "tests/chat/chat_data.h"

namespace dsv4 {
namespace {

using Json = nlohmann::ordered_json;
using test::read_request;

Json parse(const char* text) {
  return Json::parse(text);
}
const Json kPlain = parse(R"({"messages": [{"role": "user", "content": "Q"}]})");

Json with(const char* fields) {
  Json body = kPlain;
  body.update(parse(fields));
  return body;
}

// The error's line, or empty.
std::string refusal(const Json& body, const ChatOptions& options = {}) {
  try {
    read_request(body, options);
    return "";
  } catch (const RequestError& error) {
    EXPECT_EQ(error.status(), 400);
    EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos);
    return error.what();
  }
}
void expect_refused(const Json& body, const std::string& part) {
  const std::string line = refusal(body);
  EXPECT_NE(line.find(part), std::string::npos) << body.dump() << "\n" << line;
}

TEST(Effort, TextsByProfile) {
  const struct {
    const char* word;
    std::string_view official, preview;
  } kTable[] = {
      {"minimal", "", ""},
      {"low", "", ""},
      {"medium", kHighEffortText, ""},
      {"high", kHighEffortText, ""},
      {"xhigh", kHighEffortText, ""},
      {"max", kMaxEffortText, kHighEffortText},
      {"ultra", kMaxEffortText, kHighEffortText},
  };
  for (const auto& [word, official, preview] : kTable) {
    const auto effort = effort_of(word);
    ASSERT_TRUE(effort) << word;
    EXPECT_EQ(effort_text(EffortProfile::kOfficial, *effort), official) << word;
    EXPECT_EQ(effort_text(EffortProfile::kPreview, *effort), preview) << word;
  }
  EXPECT_EQ(effort_text(EffortProfile::kOfficial, Effort::kAbsent), kHighEffortText);
  EXPECT_EQ(effort_text(EffortProfile::kPreview, Effort::kAbsent), "");
  EXPECT_FALSE(effort_of("High"));
}

TEST(Effort, ProfileOfAModelFolder) {
  const auto config = [](const char* text) { return std::optional(parse_json(text, "config")); };
  const std::optional<std::string> none;
  const auto official = EffortProfile::kOfficial, preview = EffortProfile::kPreview;
  EXPECT_EQ(detect_effort_profile("x REASONING_EFFORT_PROMPTS: Dict", {}), official);
  EXPECT_EQ(detect_effort_profile("REASONING_EFFORT_MAX = (", {}), preview);
  const char* plain = R"({"num_hidden_layers": 2, "compress_ratios": [0, 4, 0]})";
  EXPECT_EQ(detect_effort_profile(none, config(plain)), preview);
  EXPECT_EQ(detect_effort_profile(
                none, config(R"({"num_hidden_layers": 2, "compress_ratios": [0, 4, 0, 0]})")),
            official);
  EXPECT_EQ(detect_effort_profile(none, config(R"({"dspark_block": 4})")), official);
  EXPECT_EQ(detect_effort_profile(none, {}), preview);
}

TEST(Effort, Limits) {
  EXPECT_EQ(default_max_tokens(false, Effort::kMax), 8192);
  EXPECT_EQ(default_max_tokens(true, Effort::kHigh), 65536);
  EXPECT_EQ(default_max_tokens(true, Effort::kUltra), 131072);
  EXPECT_EQ(default_top_p(true, true), 0.95);
  EXPECT_EQ(default_top_p(true, false), 1.0);
  EXPECT_EQ(default_top_p(false, true), 1.0);
}

TEST(Request, Thinking) {
  const auto thinking = [](const char* fields, bool by_default = true) {
    return read_request(with(fields), {.default_thinking = by_default}).thinking;
  };
  EXPECT_TRUE(thinking("{}"));
  EXPECT_FALSE(thinking("{}", false));
  EXPECT_FALSE(thinking(R"({"reasoning_effort": "high"})", false));
  EXPECT_FALSE(thinking(R"({"reasoning_effort": "none"})"));
  EXPECT_TRUE(thinking(R"({"reasoning_effort": "none", "thinking": {"type": "enabled"}})"));
  EXPECT_TRUE(thinking(R"({"thinking": {"type": "adaptive"}})", false));
  EXPECT_FALSE(thinking(R"({"thinking": {"type": "disabled"}})"));
  EXPECT_FALSE(thinking(R"({"chat_template_kwargs": {"thinking": false}})"));
  EXPECT_TRUE(thinking(R"({"chat_template_kwargs": {"enable_thinking": true}})", false));
  EXPECT_EQ(read_request(with(R"({"chat_template_kwargs": {"reasoning_effort": "max"}})")).effort,
            Effort::kMax);
  expect_refused(with(R"({"thinking": {"type": "on"}})"), "thinking.type: want enabled");
  expect_refused(with(R"({"thinking": true})"), "thinking: want an object, got a boolean");
  expect_refused(with(R"({"reasoning_effort": "huge"})"), "reasoning_effort: want none");
}

TEST(Request, SystemTextsAreJoinedInFront) {
  const auto system = [](const char* messages) {
    return read_request({{"messages", parse(messages)}}).system;
  };
  EXPECT_EQ(system(R"([{"role": "system", "content": "a"}, {"role": "user", "content": "Q"},
                       {"role": "developer", "content": "b"}])"),
            "a\n\nb");
  EXPECT_EQ(system(R"([{"role": "system", "content": ""}, {"role": "system", "content": "b"},
                       {"role": "system", "content": null}])"),
            "b");
  EXPECT_EQ(system(R"([{"role": "system", "content": [{"type": "text", "text": ""},
                                                      {"type": "text", "text": "b"}]}])"),
            "\n\nb");
}

TEST(Request, RunsOfUserMessagesAreOneTurn) {
  const auto first = [](const char* messages) {
    return read_request({{"messages", parse(messages)}}).turns.at(0).text;
  };
  EXPECT_EQ(first(R"([{"role": "user", "content": "a"}, {"role": "system", "content": "S"},
                      {"role": "user", "content": [{"type": "text", "text": "b"}]}])"),
            "a\n\nb");
  EXPECT_EQ(first(R"([{"role": "user", "content": ""}, {"role": "user", "content": "b"},
                      {"role": "user", "content": null}])"),
            "b");
}

TEST(Request, ContentIsText) {
  expect_refused(parse(R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})"),
                 "messages[0].content[0]: only text parts");
  expect_refused(parse(R"({"messages": [{"role": "user", "content": 5}]})"),
                 "messages[0].content: want a string or a list of text parts, got an integer");
  try {
    read_request(parse(R"({"messages": [{"role": "user", "content": [{"type": "file"}]}]})"));
    FAIL();
  } catch (const RequestError& error) {
    EXPECT_EQ(error.api_code(), "unsupported_content");
    EXPECT_EQ(error.param(), "messages[0].content[0]");
  }
}

TEST(Request, WhatIsNoConversation) {
  expect_refused(parse(R"({"messages": []})"), "Empty input messages");
  expect_refused(parse("{}"), "messages: is missing");
  expect_refused(parse(R"({"messages": [{"content": "x"}]})"), "messages[0].role: is missing");
  expect_refused(parse(R"({"messages": [{"role": "function", "content": "x"}]})"),
                 "messages[0].role: want system");
  expect_refused(parse(R"({"messages": ["x"]})"), "messages[0]: want an object, got a string");
  expect_refused(with(R"({"functions": []})"), "functions: is not supported");
}

Json calls(const char* ids, const char* rest) {
  Json message = {{"role", "assistant"}};
  for (const char* id = ids; *id != 0; ++id) {
    message["tool_calls"].push_back(
        {{"id", std::string(1, *id)}, {"function", {{"name", "f"}, {"arguments", "{}"}}}});
  }
  Json messages = {{{"role", "user"}, {"content", "Q"}}, message};
  for (const char* c = rest; *c != 0; ++c) {
    if (*c == 'U') {
      messages.push_back({{"role", "user"}, {"content", "U"}});
    } else {
      messages.push_back({{"role", "tool"},
                          {"tool_call_id", std::string(1, *c)},
                          {"content", std::string(1, *c)}});
    }
  }
  return {{"messages", messages}};
}
std::string last_turn(const Json& body, bool lenient) {
  std::string text = read_request(body, {.lenient_tools = lenient}).turns.back().text;
  for (const char* tag : {"<tool_result>", "</tool_result>", "\n\n"}) {
    for (size_t at = text.find(tag); at != text.npos; at = text.find(tag))
      text.erase(at, std::strlen(tag));
  }
  return text;
}

TEST(Request, EveryCallIsAnsweredOnce) {
  EXPECT_EQ(last_turn(calls("abc", "cabU"), false), "abcU");
  EXPECT_EQ(refusal(calls("ab", "baU")), "");
  expect_refused(calls("ab", "b"), "did not have response messages: a");
  expect_refused(calls("ab", ""), "did not have response messages: a, b");
  expect_refused(calls("ab", "Uab"), "must be followed by tool messages");
  expect_refused(calls("ab", "abb"), "Duplicate value for 'tool_call_id' of 'b'");
  expect_refused(calls("aa", "a"), "Duplicate value for 'tool_call_id' of 'a'");
  expect_refused(calls("ab", "axb"), "'tool_call_id' of 'x' not found");
  expect_refused(calls("a", "aUa"), "must be a response to a preceding message");
  expect_refused(parse(R"({"messages": [{"role": "tool", "tool_call_id": "1", "content": ""}]})"),
                 "must be a response to a preceding message");
}

TEST(Request, LenientToolsAcceptWhatFitsNoCall) {
  EXPECT_EQ(last_turn(calls("ab", "bUa"), true), "aUb");
  EXPECT_EQ(last_turn(calls("abc", "cxb"), true), "xbc") << "an unknown id counts as the first";
  EXPECT_EQ(last_turn(calls("abc", "c"), true), "c");
}

TEST(Request, JsonFormatNeedsTheWord) {
  const char* json = R"({"response_format": {"type": "json_object"}})";
  expect_refused(with(json), "must contain the word 'json'");
  Json body = with(json);
  body["messages"][0]["content"] = "as jSoN please";
  EXPECT_EQ(refusal(body), "");
  expect_refused(with(R"({"response_format": {"type": "xml"}})"),
                 "response_format.type: want text");
  expect_refused(with(R"({"response_format": {"type": "json_schema", "json_schema": {}}})"),
                 "response_format.json_schema.schema: is missing");
}

TEST(Request, PrefixIsTheLastAssistantMessageWithoutTools) {
  const Json last = parse(R"({"messages": [{"role": "user", "content": "Q"},
      {"role": "assistant", "content": "A", "prefix": true}]})");
  EXPECT_TRUE(read_request(last).continues);
  Json body = last;
  body["tools"] = parse(R"([{"type": "function", "function": {"name": "f"}}])");
  expect_refused(body, "Function call should not be used with prefix");
  body["tool_choice"] = "none";
  expect_refused(body, "Function call should not be used with prefix");
  body["tools"] = Json::array();
  EXPECT_EQ(refusal(body), "");
  body = last;
  body["messages"].push_back({{"role", "user"}, {"content", "Q"}});
  expect_refused(body, "prefix is for the last message only");
  expect_refused(parse(R"({"messages": [{"role": "user", "content": "Q", "prefix": true}]})"),
                 "prefix is for the last message only");
  expect_refused(with(R"({"continue_final_message": true})"), "must be the assistant's");
}

TEST(Request, RequiredReasoning) {
  const Json body = parse(R"({"messages": [{"role": "user", "content": "Q"},
      {"role": "assistant", "content": "A"}, {"role": "user", "content": "Q"}],
      "drop_thinking": false})");
  EXPECT_EQ(refusal(body), "");
  EXPECT_NE(refusal(body, {.require_reasoning = true}), "");
  EXPECT_EQ(refusal(body, {.default_thinking = false, .require_reasoning = true}), "");
}

Json tool(const Json& function) {
  return {{"messages", kPlain["messages"]},
          {"tools", {{{"type", "function"}, {"function", function}}}}};
}

TEST(Tools, DefinitionsInOneOrder) {
  const Conversation conversation = read_request(
      tool(parse(R"({"strict": false, "parameters": {"b": 1, "a": 2}, "x": 1, "name": "n"})")));
  ASSERT_EQ(conversation.tools.size(), 1u);
  EXPECT_EQ(conversation.tools[0].name, "n");
  EXPECT_EQ(conversation.tools[0].description, "");
  EXPECT_EQ(to_json(conversation.tools[0].parameters), R"({"b": 1, "a": 2})");
  EXPECT_EQ(to_json(read_request(tool({{"name", "n"}})).tools[0].parameters), "{}");
}

TEST(Tools, Names) {
  const auto name = [](const std::string& text) { return refusal(tool({{"name", text}})); };
  EXPECT_EQ(name(std::string(128, 'a')), "");
  EXPECT_EQ(name("größe.read-file"), "");
  EXPECT_NE(name(std::string(129, 'a')), "");
  for (const char* bad : {"", "a\"", "<a", "a>", "a\nb", "\x7f"}) EXPECT_NE(name(bad), "") << bad;
  Json twice = tool({{"name", "n"}});
  twice["tools"].push_back(twice["tools"][0]);
  expect_refused(twice, "same name");
}

TEST(Tools, Choice) {
  Json body = tool({{"name", "n"}});
  body["tool_choice"] = parse(R"({"type": "function", "function": {"name": "n"}})");
  EXPECT_EQ(read_request(body).chosen_tool, "n");
  body["tool_choice"]["function"]["name"] = "other";
  expect_refused(body, "no tool of that name");
  body["tool_choice"] = "sometimes";
  expect_refused(body, "tool_choice: want none");
  body["tools"] = Json::array();
  EXPECT_EQ(refusal(body), "") << "without tools the choice is ignored";
}

std::string strict(const char* schema) {
  return to_json(strict_schema(parse_json(schema, "test"), "p"));
}

TEST(Tools, StrictSchemas) {
  EXPECT_EQ(strict(R"({"description": "d", "required": ["b", "a"], "type": "object",
                       "properties": {"a": {"description": "x", "type": "string"}, "b": {}}})"),
            R"({"type": "object", "properties": {"a": {"type": "string", "description": "x"}, )"
            R"("b": {}}, "additionalProperties": false, "required": ["a", "b"], )"
            R"("description": "d"})");
  EXPECT_EQ(strict(R"({"$defs": {"x": {"minItems": 1, "type": "array", "items": {"enum": [1],
                       "type": "integer"}}}, "anyOf": [{"title": "t", "type": "null"}]})"),
            R"({"$defs": {"x": {"type": "array", "minItems": 1, "items": {"type": "integer", )"
            R"("enum": [1]}}}, "anyOf": [{"type": "null", "title": "t"}]})");
  EXPECT_EQ(strict(R"({"type": ["object", "null"]})"),
            R"({"type": ["object", "null"], "properties": {}, "additionalProperties": false, )"
            R"("required": []})");
  // A property named like a keyword is a property.
  EXPECT_EQ(strict(R"({"properties": {"type": {"x": 1, "type": "string"}}})"),
            R"({"properties": {"type": {"type": "string", "x": 1}}, )"
            R"("additionalProperties": false, "required": ["type"]})");
  for (const char* bad : {R"({"type": "object", "properties": {"a": {}}, "required": []})",
                          R"({"type": "object", "properties": {"a": {}}, "required": ["a", "a"]})",
                          R"({"type": "object", "properties": {"a": {}}, "required": ["b"]})",
                          R"({"type": "object", "properties": {}, "required": 3})",
                          R"({"type": "object", "additionalProperties": true})",
                          R"({"items": {"type": "object", "properties": 3}})"}) {
    EXPECT_THROW(strict(bad), RequestError) << bad;
  }
}

}  // namespace
}  // namespace dsv4
