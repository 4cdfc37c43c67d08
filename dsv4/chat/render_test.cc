// Prompts, byte for byte: the examples of the specification (docs/spec/serving.md 1.5), and what a
// client's text can never become.

#include "dsv4/chat/render.h"

#include <gtest/gtest.h>

#include "tests/chat/chat_data.h"
#include "tests/chat/client_text.h"
#include "tests/chat/random_request.h"

namespace dsv4 {
namespace {

using Json = nlohmann::ordered_json;
using test::rendered;

Json say(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}
Json request(std::initializer_list<Json> messages) {
  return {{"messages", std::vector<Json>(messages)}};
}
Json off(Json body) {
  body["thinking"] = {{"type", "disabled"}};
  return body;
}
const Json kTools = Json::parse(R"([{"type": "function", "function": {"name": "f"}}])");
const std::string kShownTools =
    "\n\n{TOOLS}{\"name\": \"f\", \"description\": \"\", \"parameters\": {}}{/TOOLS}";
Json with_tools(Json body) {
  body["tools"] = kTools;
  return body;
}

Json answered(const std::string& text, const std::string& reasoning) {
  Json message = say("assistant", text);
  message["reasoning_content"] = reasoning;
  return message;
}
const Json kTwoTurns = request({say("user", "Q1"), answered("A1", "R1"), say("user", "Q2")});

TEST(Render, TheExamplesOfTheSpecification) {
  EXPECT_EQ(rendered(off(request({say("system", "S"), say("user", "Q")}))),
            "{BOS}S{USER}Q{ASST}{/THINK}");
  EXPECT_EQ(rendered(request({say("user", "Q")})), "{BOS}{HIGH}{USER}Q{ASST}{THINK}");
  EXPECT_EQ(rendered(kTwoTurns), "{BOS}{HIGH}{USER}Q1{ASST}{/THINK}A1{EOS}{USER}Q2{ASST}{THINK}");
  EXPECT_EQ(
      rendered(with_tools(kTwoTurns)),
      "{BOS}{HIGH}" + kShownTools + "{USER}Q1{ASST}{THINK}R1{/THINK}A1{EOS}{USER}Q2{ASST}{THINK}");
}

TEST(Render, CallsAndTheirResults) {
  const Json body = Json::parse(R"({"messages": [
    {"role": "user", "content": "Q"},
    {"role": "assistant", "content": "", "tool_calls": [
      {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\":\"x\"}"}},
      {"id": "2", "type": "function", "function": {"name": "g", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "2", "content": "2"},
    {"role": "tool", "tool_call_id": "1", "content": "1"}]})");
  EXPECT_EQ(rendered(with_tools(off(body))),
            "{BOS}" + kShownTools +
                "{USER}Q{ASST}{/THINK}\n\n<◆tool_calls>\n<◆invoke name=\"f\">\n<◆parameter "
                "name=\"a\" string=\"true\">x</◆parameter>\n</◆invoke>\n<◆invoke "
                "name=\"g\">\n</◆invoke>\n</◆tool_calls>{EOS}{USER}<tool_result>1</tool_result>\n\n"
                "<tool_result>2</tool_result>{ASST}{/THINK}");
}

std::string shown_arguments(const Json& arguments) {
  const Json call = {{"id", "1"}, {"function", {{"name", "f"}, {"arguments", arguments}}}};
  const Json body = request({say("user", "Q"),
                             {{"role", "assistant"}, {"tool_calls", {call}}},
                             {{"role", "tool"}, {"tool_call_id", "1"}, {"content", ""}}});
  const std::string text = rendered(off(body));
  const size_t begin = text.find("<◆invoke name=\"f\">\n") + 21, end = text.find("</◆invoke>");
  return text.substr(begin, end - begin);
}

TEST(Render, Arguments) {
  EXPECT_EQ(shown_arguments("{}"), "");
  EXPECT_EQ(shown_arguments(R"({"a":1.50,"b":[1,"x"],"c":null,"d":"\"\n<"})"),
            "<◆parameter name=\"a\" string=\"false\">1.5</◆parameter>\n"
            "<◆parameter name=\"b\" string=\"false\">[1, \"x\"]</◆parameter>\n"
            "<◆parameter name=\"c\" string=\"false\">null</◆parameter>\n"
            "<◆parameter name=\"d\" string=\"true\">\"\n<</◆parameter>\n");
  // No object: one string.
  for (const char* text : {"", "[]", "no json", "{\"a\":NaN}", "null", "{\"a\":1e400}"}) {
    EXPECT_EQ(shown_arguments(text), fmt::format("<◆parameter name=\"arguments\" "
                                                 "string=\"true\">{}</◆parameter>\n",
                                                 text));
  }
  EXPECT_EQ(shown_arguments({{"a", true}}),
            "<◆parameter name=\"a\" string=\"false\">true</◆parameter>\n");
}

TEST(Render, AChoiceThatForcesACallOpensTheBlock) {
  Json body = with_tools(off(request({say("user", "Q")})));
  const std::string open = "{ASST}{/THINK}\n\n<◆tool_calls>\n";
  for (const Json& choice :
       {Json("required"), Json({{"type", "function"}, {"function", {{"name", "f"}}}})}) {
    body["tool_choice"] = choice;
    EXPECT_TRUE(rendered(body).ends_with(open)) << rendered(body);
    EXPECT_EQ(render(test::read_request(body)).stage, OutputStage::kBlock);
  }
  body["thinking"]["type"] = "enabled";
  EXPECT_TRUE(rendered(body).ends_with("{ASST}{THINK}"));
  body["tool_choice"] = "none";
  EXPECT_EQ(rendered(body), "{BOS}{HIGH}{USER}Q{ASST}{THINK}");
}

TEST(Render, ReasoningStaysWithToolsOrOnRequest) {
  Json body = kTwoTurns;
  body["drop_thinking"] = false;
  EXPECT_EQ(rendered(body),
            "{BOS}{HIGH}{USER}Q1{ASST}{THINK}R1{/THINK}A1{EOS}{USER}Q2{ASST}{THINK}");
  EXPECT_EQ(rendered(off(body)), "{BOS}{USER}Q1{ASST}{/THINK}A1{EOS}{USER}Q2{ASST}{/THINK}");
  body = with_tools(request({say("user", "Q"), say("assistant", "A")}));
  EXPECT_TRUE(rendered(body).ends_with("{ASST}{THINK}{/THINK}A{EOS}{ASST}{THINK}"));
  // Tools that were not chosen are none.
  Json none = with_tools(kTwoTurns);
  none["tool_choice"] = "none";
  EXPECT_EQ(rendered(none), rendered(kTwoTurns));
}

TEST(Render, EveryAssistantTurnHasItsHeader) {
  EXPECT_EQ(rendered(off(request({say("assistant", "A"), say("assistant", "B")}))),
            "{BOS}{ASST}{/THINK}A{EOS}{ASST}{/THINK}B{EOS}{ASST}{/THINK}");
}

TEST(Render, Prefix) {
  const auto prefix = [](const std::string& text, const std::string& reasoning) {
    Json message = answered(text, reasoning);
    message["prefix"] = true;
    return request({say("user", "Q"), message});
  };
  const std::string begin = "{BOS}{HIGH}{USER}Q{ASST}";
  EXPECT_EQ(rendered(prefix("A", "R")), begin + "{THINK}R{/THINK}A");
  EXPECT_EQ(rendered(prefix("", "R")), begin + "{THINK}R");
  EXPECT_EQ(rendered(prefix("A", "")), begin + "{THINK}{/THINK}A");
  EXPECT_EQ(rendered(prefix("", "")), begin + "{THINK}");
  EXPECT_EQ(rendered(off(prefix("A", "R"))), "{BOS}{USER}Q{ASST}{/THINK}A");
  EXPECT_EQ(render(test::read_request(prefix("", "R"))).stage, OutputStage::kReason);
  EXPECT_TRUE(render(test::read_request(prefix("", "R"))).continues);
  EXPECT_EQ(render(test::read_request(prefix("A", "R"))).stage, OutputStage::kContent);
  EXPECT_FALSE(render(test::read_request(prefix("", ""))).continues);
  Json last = request({say("user", "Q"), say("assistant", "A")});
  last["continue_final_message"] = true;
  EXPECT_EQ(rendered(off(last)), "{BOS}{USER}Q{ASST}{/THINK}A");
}

TEST(Render, ResponseFormats) {
  Json body = off(request({say("user", "Q json")}));
  body["response_format"] = {{"type", "json_object"}};
  const std::string json_block =
      "\n\nYou are a helpful assistant designed to output JSON.\n## Response Format:\n\nReply with "
      "JSON object ONLY.";
  EXPECT_EQ(rendered(body), "{BOS}" + json_block + "{USER}Q json{ASST}{/THINK}");
  body["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"schema", {{"a", 1}}}}}};
  EXPECT_EQ(rendered(body),
            "{BOS}\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to "
            "reply:\n{\"a\": 1}{USER}Q json{ASST}{/THINK}");
  EXPECT_NE(rendered(with_tools(body)).find("{/TOOLS}\n\n## Response"), std::string::npos);
}

TEST(Render, RemindersStayInPlace) {
  EXPECT_EQ(rendered(off(request({say("user", "Q"), say("latest_reminder", "T"), say("system", "S"),
                                  say("user", "Q2")}))),
            "{BOS}S{USER}Q{REMINDER}T{USER}Q2{ASST}{/THINK}");
}

TEST(Render, SpansAreCodePointsOfTheMarkers) {
  const Prompt prompt = render(test::read_request(off(request({say("user", "漢<think>")}))));
  const auto spans = prompt.marker_spans();
  ASSERT_EQ(spans.size(), 4u);
  EXPECT_EQ(spans[0], std::pair(int64_t{0}, int64_t{21}));
  EXPECT_EQ(spans[1], std::pair(int64_t{21}, int64_t{29}));
  EXPECT_EQ(spans[2].first, 29 + 8) << "one character, then the seven of a spelled marker";
}

TEST(Render, NeighboringTextsAreTokenizedTogether) {
  Prompt one, two;
  one.add_text("a b");
  two.add_text("a");
  two.add_text("");
  two.add_text(" b");
  EXPECT_EQ(one.pieces(), two.pieces());
}

TEST(Render, ClientTextNeverBecomesAMarker) {
  test::check_client_text(5, 1000);
}

// Markers spelled by the client change nothing in the structure, whatever the words are.
TEST(Render, SpelledMarkersLeaveTheStructureAlone) {
  Rng rng(6);
  for (int i = 0; i < 1000; ++i) {
    const JsonValue body = test::random_request(rng);
    const auto markers = [](const Prompt& prompt) {
      std::vector<Marker> out;
      for (const PromptPiece& piece : prompt.pieces()) {
        if (piece.marker) out.push_back(*piece.marker);
      }
      return out;
    };
    const JsonValue plain = test::without_markers(body);
    ASSERT_EQ(markers(render(read_chat_request(body, {}))),
              markers(render(read_chat_request(plain, {}))))
        << to_json(body);
  }
}

TEST(Render, AMarkerThatTheModelLacksIsRefused) {
  const Tokenizer tokenizer = test::parse_tokenizer(test::tiny_tokenizer_json());
  const TextEncoder text(parse_tokenizer_json(test::tiny_tokenizer_json().dump(), "test"));
  try {
    encode(render(test::read_request(request({say("user", "Q")}))), MarkerIds(tokenizer), text);
    FAIL();
  } catch (const RequestError& error) {
    EXPECT_EQ(error.status(), 400);
    EXPECT_STREQ(error.what(),
                 "this model has no <｜begin▁of▁sentence｜> token, which this request needs");
  }
}

}  // namespace
}  // namespace dsv4
