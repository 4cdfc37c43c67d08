// Every field of docs/spec/serving.md 3.2 is supported, named in the warning, or refused by name,
// at any depth. The engine is scripted.

#include <gtest/gtest.h>

#include "dsv4/server/known_fields.h"
#include "tests/server/service_data.h"

namespace dsv4::test {
namespace {

struct Api4 {
  const char* path;
  json body;
};

const Api4 kChat{"/v1/chat/completions", chat_body("Hi")};
const Api4 kCompletions{"/v1/completions", {{"prompt", "Hi"}}};
const Api4 kMessages{"/v1/messages", {{"messages", json::array({user("Hi")})}, {"max_tokens", 9}}};
const Api4 kResponses{"/v1/responses", {{"input", "Hi"}}};

Answer with(const Api4& api, const json& patch) {
  json body = api.body;
  body.merge_patch(patch);
  return server().post(api.path, body);
}

std::string warning(const Answer& answer) {
  EXPECT_EQ(answer.status, 200) << answer.body;
  const auto found = answer.headers.find("x-dsv4-warning");
  return found == answer.headers.end() ? "" : found->second;
}

TEST(ServiceFields, WhatHasNoEffectIsInTheWarning) {
  const std::vector<std::tuple<Api4, json, std::string>> cases = {
      {kChat, {{"metadata", {{"a", "b"}}}}, "metadata"},
      {kChat, {{"verbosity", "low"}}, "verbosity"},
      {kChat, {{"prompt_cache_retention", "24h"}}, "prompt_cache_retention"},
      {kChat,
       {{"messages", json::array({{{"role", "user"}, {"content", "x"}, {"name", "n"}}})}},
       "messages[].name"},
      {kChat,
       {{"stream", true}, {"stream_options", {{"include_obfuscation", true}}}},
       "stream_options.include_obfuscation"},
      {kChat, {{"chat_template_kwargs", {{"lang", "en"}}}}, "chat_template_kwargs.lang"},
      {kCompletions, {{"store", true}}, "store"},
      {kMessages, {{"metadata", {{"user_id", "u"}}}}, "metadata"},
      {kMessages, {{"context_management", {{"edits", {1}}}}}, "context_management"},
      {kMessages,
       {{"system",
         json::array(
             {{{"type", "text"}, {"text", "s"}, {"cache_control", {{"type", "ephemeral"}}}}})}},
       "system[].cache_control"},
      {kResponses, {{"store", true}}, "store"},
      {kResponses, {{"truncation", "auto"}}, "truncation"},
      {kResponses, {{"reasoning", {{"summary", "auto"}}}}, "reasoning.summary"},
      {kResponses, {{"text", {{"verbosity", "low"}}}}, "text.verbosity"},
      {kResponses, {{"include", {"file_search_call.results"}}}, "include[0]"},
      {kResponses, {{"tools", json::array({{{"type", "web_search"}}})}}, "tools[0]"},
  };
  for (const auto& [api, patch, expected] : cases)
    EXPECT_EQ(warning(with(api, patch)), expected) << api.path << patch;
}

TEST(ServiceFields, WhatChangesNothingIsNotNamed) {
  EXPECT_EQ(warning(with(kChat, {{"metadata", json::object()},
                                 {"store", false},
                                 {"bad_words", json::array()},
                                 {"modalities", {"text"}},
                                 {"service_tier", ""}})),
            "");
  EXPECT_EQ(warning(with(kResponses, {{"truncation", "disabled"}, {"background", false}})), "");
  EXPECT_EQ(warning(with(kMessages, {{"thinking", {{"type", "enabled"}, {"budget_tokens", 9}}}})),
            "");
}

TEST(ServiceFields, WhatChangesTheAnswerIsRefusedByName) {
  const json function = {{"name", "f"}, {"arguments", "{}"}};
  const std::vector<std::tuple<Api4, json, std::string>> cases = {
      {kChat, {{"bad_words", {"x"}}}, "bad_words"},
      {kChat, {{"allowed_token_ids", {1}}}, "allowed_token_ids"},
      {kChat, {{"chat_template", "x"}}, "chat_template"},
      {kChat, {{"modalities", {"text", "audio"}}}, "modalities"},
      {kChat,
       {{"thinking", {{"type", "enabled"}, {"budget_tokens", 0}}}},
       "thinking.budget_tokens"},
      {kChat, {{"max_tool_calls", 0}}, "max_tool_calls"},
      {kChat,
       {{"messages",
         json::array(
             {user("x"), {{"role", "assistant"}, {"function_call", function}}, user("y")})}},
       "messages[1].function_call"},
      {kCompletions, {{"truncate_prompt_tokens", 5}}, "truncate_prompt_tokens"},
      {kMessages, {{"mcp_servers", {1}}}, "mcp_servers"},
      {kMessages,
       {{"tools", json::array({{{"type", "web_search_20250305"}, {"name", "w"}}})}},
       "tools[0].type"},
      {kResponses, {{"truncation", "some"}}, "truncation"},
      {kResponses, {{"top_logprobs", 21}}, "top_logprobs"},
      {kResponses, {{"max_tool_calls", 0}}, "max_tool_calls"},
      {kResponses, {{"conversation", "c"}}, "conversation"},
      {kResponses, {{"prompt", {{"id", "p"}}}}, "prompt"},
      {kResponses, {{"background", true}}, "background"},
      {kResponses,
       {{"input", json::array({{{"type", "item_reference"}, {"id", "x"}}})}},
       "input[0]"},
      {kResponses,
       {{"tools", json::array({{{"type", "function"}, {"name", "f"}}})},
        {"tool_choice",
         {{"type", "allowed_tools"},
          {"tools", json::array({{{"type", "function"}, {"name", "g"}}})}}}},
       "tool_choice"},
  };
  for (const auto& [api, patch, field] : cases) {
    const Answer answer = with(api, patch);
    EXPECT_EQ(answer.status, 400) << api.path << patch;
    const std::string message = answer.json()["error"].value("message", "");
    EXPECT_TRUE(message.starts_with(field)) << patch << message;
  }
}

// In strict mode a field that the API does not have is an error, one that has no effect is not.
TEST(ServiceFields, StrictnessKnowsTheApis) {
  const auto ignored = [](const char* text, Api api) {
    return ignored_fields(parse_json(text, "body"), api, /*strict=*/true);
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(ignored(R"({"store": true, "messages": []})", Api::kChat), Names{"store"});
  EXPECT_THROW(ignored(R"({"stor": true})", Api::kChat), RequestError);
  EXPECT_THROW(ignored(R"({"messages": [{"role": "user", "contents": "x"}]})", Api::kChat),
               RequestError);
  EXPECT_THROW(ignored(R"({"text": {"formats": 1}})", Api::kResponses), RequestError);
  EXPECT_EQ(ignored(R"({"betas": ["x"]})", Api::kMessages), Names{"betas"});
  EXPECT_THROW(ignored(R"({"max_completion_tokens": 1})", Api::kCompletions), RequestError);
}

TEST(ServiceFields, AWarningHasABound) {
  json body = chat_body("Hi");
  for (int i = 0; i < 20'000; ++i) body["x" + std::to_string(i)] = 1;
  const std::string text = warning(server().chat(body));
  EXPECT_LT(text.size(), 1500u);
  EXPECT_TRUE(text.ends_with(", ...")) << text;
}

// Every API has the fields that decide when a request runs and what it may share.
TEST(ServiceFields, EveryApiHasTheFieldsOfTheQueue) {
  for (const Api4& api : {kChat, kCompletions, kMessages, kResponses}) {
    EXPECT_EQ(warning(with(api, {{"cache_salt", "x"}, {"priority", -1}, {"deadline_ms", 60000}})),
              "")
        << api.path;
    for (const json& wrong :
         {json{{"cache_salt", 5}}, json{{"priority", 3}}, json{{"deadline_ms", 0}}})
      EXPECT_EQ(with(api, wrong).status, 400) << api.path << wrong;
  }
  const json slow = {{"messages", json::array({user("slow")})}, {"max_tokens", 2000}};
  json body = slow;
  body["deadline_ms"] = 300;
  EXPECT_EQ(server().post("/v1/messages", body).json()["stop_reason"], "max_tokens");
  const json response =
      server().post("/v1/responses", {{"input", "slow"}, {"deadline_ms", 300}}).json();
  EXPECT_EQ(response["status"], "incomplete") << response;
}

TEST(ServiceFields, ReasoningIsReadUnderItsOtherName) {
  json body = chat_body("Q");
  body["messages"].push_back({{"role", "assistant"}, {"content", "A"}, {"reasoning", "because"}});
  body["messages"].push_back(user("Q2"));
  body["thinking"] = {{"type", "enabled"}};
  body["drop_thinking"] = false;
  const json rendered = server().post("/v1/dsv4/render", body).json();
  EXPECT_NE(rendered["prompt"].get<std::string>().find("<think>because</think>A"),
            std::string::npos)
      << rendered;
}

TEST(ServiceFields, ResponsesHaveLogprobs) {
  json body = {{"input", "Hi"}, {"include", {"message.output_text.logprobs"}}};
  const json whole = server().post("/v1/responses", body).json();
  const json part = whole["output"][0]["content"][0];
  std::string text;
  for (const json& token : part["logprobs"]) {
    text += token["token"];
    EXPECT_EQ(token["logprob"], -0.5);
  }
  EXPECT_EQ(text, part["text"]);
  body["stream"] = true;
  std::string streamed;
  for (const auto& event : events_of(server().post("/v1/responses", body).body)) {
    if (event.event != "response.output_text.delta") continue;
    const json delta = event.json();
    for (const json& token : delta["logprobs"]) streamed += token["token"];
  }
  EXPECT_EQ(streamed, text);
  EXPECT_TRUE(
      with(kResponses, json::object()).json()["output"][0]["content"][0]["logprobs"].empty());
}

// Whole and streamed, and only with the option.
TEST(ServiceFields, ArgumentsBecomeTheDeclaredTypes) {
  const std::string script =
      R"({"output": "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n)"
      R"(<｜DSML｜parameter name=\"days\" string=\"true\">5</｜DSML｜parameter>\n)"
      R"(<｜DSML｜parameter name=\"city\" string=\"false\">7</｜DSML｜parameter>\n)"
      R"(</｜DSML｜invoke>\n</｜DSML｜tool_calls>"})";
  json body = chat_body("x");
  body["tools"] =
      json::array({{{"type", "function"},
                    {"function",
                     {{"name", "f"},
                      {"parameters",
                       {{"type", "object"},
                        {"properties",
                         {{"days", {{"type", "integer"}}}, {"city", {{"type", "string"}}}}}}}}}}});
  for (const bool coerce : {false, true}) {
    ScriptedServer coercing(script, {.tool_coerce = coerce});
    const json want = coerce ? json{{"days", 5}, {"city", "7"}} : json{{"days", "5"}, {"city", 7}};
    const auto arguments = [](const json& call) {
      return json::parse(call["function"]["arguments"].get<std::string>());
    };
    body["stream"] = false;
    EXPECT_EQ(arguments(coercing.choice(body)["message"]["tool_calls"][0]), want);
    body["stream"] = true;
    std::string streamed;
    for (const auto& event : events_of(coercing.chat(body).body)) {
      if (event.data == "[DONE]") continue;
      const json delta = event.json()["choices"][0]["delta"];
      if (delta.contains("tool_calls"))
        streamed += delta["tool_calls"][0]["function"].value("arguments", "");
    }
    EXPECT_EQ(json::parse(streamed), want);
  }
}

TEST(ServiceFields, MaxToolCallsEndTheAnswer) {
  const std::string call = R"(<｜DSML｜invoke name=\"f\">\n</｜DSML｜invoke>\n)";
  ScriptedServer many(R"({"output": "<｜DSML｜tool_calls>\n)" + call + call + call +
                      R"(</｜DSML｜tool_calls>"})");
  const json tools = json::array({{{"type", "function"}, {"name", "f"}}});
  json body = {{"input", "x"}, {"tools", tools}};
  EXPECT_EQ(many.post("/v1/responses", body).json()["output"].size(), 3u);
  body["max_tool_calls"] = 2;
  EXPECT_EQ(many.post("/v1/responses", body).json()["output"].size(), 2u);
  body["parallel_tool_calls"] = false;
  EXPECT_EQ(many.post("/v1/responses", body).json()["output"].size(), 1u);
}

}  // namespace
}  // namespace dsv4::test
