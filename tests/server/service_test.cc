// The routes of the four APIs over loopback: answers and event orders. The engine is scripted.

#include <gtest/gtest.h>

#include "tests/server/service_data.h"

namespace dsv4::test {
namespace {

json weather_tool() {
  return json::array(
      {{{"type", "function"},
        {"function",
         {{"name", "get"},
          {"parameters",
           {{"type", "object"},
            {"properties",
             {{"city", {{"type", "string"}}}, {"days", {{"type", "integer"}}}}}}}}}}});
}

std::vector<json> chunks_of(const Answer& answer) {
  std::vector<json> chunks;
  for (const SseEvent& event : events_of(answer.body)) {
    if (event.data != "[DONE]") chunks.push_back(event.json());
  }
  return chunks;
}

std::vector<std::string> names_of(const Answer& answer) {
  std::vector<std::string> names;
  for (const SseEvent& event : events_of(answer.body)) {
    EXPECT_EQ(event.event, event.json().value("type", ""));
    if (names.empty() || names.back() != event.event) names.push_back(event.event);
  }
  return names;
}

TEST(Service, AnswersAChat) {
  const Answer answer = server().chat(chat_body("Hi"));
  ASSERT_EQ(answer.status, 200) << answer.body;
  const json body = answer.json();
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["model"], "demo");
  EXPECT_EQ(body["choices"][0]["message"], json({{"role", "assistant"},
                                                 {"content", "Hello there."},
                                                 {"refusal", nullptr},
                                                 {"annotations", json::array()}}));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  const json usage = body["usage"];
  EXPECT_EQ(usage["total_tokens"],
            usage["prompt_tokens"].get<int>() + usage["completion_tokens"].get<int>());
  EXPECT_EQ(usage["completion_tokens_details"]["reasoning_tokens"], 0);
  EXPECT_TRUE(answer.headers.contains("x-request-id"));
  EXPECT_TRUE(answer.headers.contains("x-dsv4-seed"));
}

TEST(Service, StreamsAChat) {
  json body = chat_body("Hi");
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  const Answer answer = server().chat(body);
  EXPECT_EQ(answer.headers.at("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(answer.headers.at("cache-control"), "no-store");
  ASSERT_TRUE(answer.body.ends_with("data: [DONE]\n\n"));
  const auto chunks = chunks_of(answer);
  ASSERT_GE(chunks.size(), 4u);
  EXPECT_EQ(chunks[0]["choices"][0]["delta"], json({{"role", "assistant"}, {"content", ""}}));
  std::string text;
  for (size_t i = 1; i + 2 < chunks.size(); ++i) {
    text += chunks[i]["choices"][0]["delta"]["content"];
    EXPECT_TRUE(chunks[i]["choices"][0]["finish_reason"].is_null());
    EXPECT_TRUE(chunks[i]["usage"].is_null());
  }
  EXPECT_EQ(text, "Hello there.");
  EXPECT_EQ(chunks[chunks.size() - 2]["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(chunks.back()["choices"], json::array());
  EXPECT_GT(chunks.back()["usage"]["completion_tokens"], 0);
}

TEST(Service, ThinkingIsApart) {
  json body = chat_body("ponder");
  body["thinking"] = {{"type", "enabled"}};
  const json answer = server().chat(body).json();
  EXPECT_EQ(answer["choices"][0]["message"]["reasoning_content"], "Hm, yes.");
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "Done.");
  const json usage = answer["usage"];
  EXPECT_GT(usage["completion_tokens_details"]["reasoning_tokens"], 0);
  EXPECT_LT(usage["completion_tokens_details"]["reasoning_tokens"], usage["completion_tokens"]);
}

TEST(Service, ToolCallsComeAndGoBack) {
  json body = chat_body("weather");
  body["tools"] = weather_tool();
  body["thinking"] = {{"type", "enabled"}};
  const json choice = server().choice(body);
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  const json message = choice["message"];
  EXPECT_EQ(message["reasoning_content"], "Let me see.");
  EXPECT_EQ(message["content"], "I call.");
  ASSERT_EQ(message["tool_calls"].size(), 1u);
  EXPECT_EQ(message["tool_calls"][0]["function"]["name"], "get");
  EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], R"({"city": "Oslo", "days": 2})");
  body["messages"].push_back(message);
  body["messages"].push_back(
      {{"role", "tool"}, {"tool_call_id", message["tool_calls"][0]["id"]}, {"content", "sunny"}});
  EXPECT_EQ(server().chat(body).status, 200);
}

TEST(Service, StreamedCallsJoinToTheSameArguments) {
  json body = chat_body("weather");
  body["tools"] = weather_tool();
  body["stream"] = true;
  std::string arguments, finish;
  for (const json& chunk : chunks_of(server().chat(body))) {
    const json choice = chunk["choices"][0];
    if (choice["delta"].contains("tool_calls"))
      arguments += choice["delta"]["tool_calls"][0]["function"]["arguments"];
    if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"];
  }
  EXPECT_EQ(arguments, R"({"city": "Oslo", "days": 2})");
  EXPECT_EQ(finish, "tool_calls");
}

TEST(Service, StopStringsCutAcrossTokens) {
  json body = chat_body("count");
  body["stop"] = {"four five", "zzz"};
  const json choice = server().choice(body);
  EXPECT_EQ(choice["message"]["content"], "one two three ");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], "four five");
  body["include_stop_str_in_output"] = true;
  EXPECT_EQ(server().choice(body)["message"]["content"], "one two three four five");
}

TEST(Service, LimitsEndWithLength) {
  json body = chat_body("count");
  body["max_tokens"] = 3;
  const json answer = server().chat(body).json();
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 3);
}

TEST(Service, ManyChoicesAndLogprobs) {
  json body = chat_body("Hi");
  body["n"] = 3;
  body["logprobs"] = true;
  const json answer = server().chat(body).json();
  ASSERT_EQ(answer["choices"].size(), 3u);
  for (const json& choice : answer["choices"]) {
    std::string joined;
    for (const json& token : choice["logprobs"]["content"]) {
      joined += token["token"];
      EXPECT_EQ(token["logprob"], -0.5);
      EXPECT_EQ(token["bytes"].size(), token["token"].get<std::string>().size());
    }
    EXPECT_EQ(joined, "Hello there.");
  }
}

TEST(Service, CompletionsTakeTextIdsAndLists) {
  const auto texts = [](const json& body) {
    std::vector<std::string> out;
    const Answer answer = server().post("/v1/completions", body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    const json choices = answer.json()["choices"];
    for (const json& choice : choices) out.push_back(choice["text"]);
    return out;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(texts({{"prompt", "Hi"}}), Texts{"Hello there."});
  EXPECT_EQ(texts({{"prompt", {"Hi", "count"}}, {"max_tokens", 2}}).size(), 2u);
  EXPECT_EQ(texts({{"prompt", {0, 5, 6}}}), Texts{"Hello there."});
  EXPECT_EQ(texts({{"prompt", {{0, 5}, {0, 6}}}}).size(), 2u);
  EXPECT_EQ(texts({{"prompt", "Hi, "}, {"echo", true}}), Texts{"Hi, Hello there."});
}

// As evaluations of other servers' models ask for the likelihood of a text.
TEST(Service, EchoWithLogprobsScoresThePrompt) {
  json body = {{"prompt", "Hi there"}, {"echo", true}, {"logprobs", 0}, {"max_tokens", 2}};
  const json whole = server().post("/v1/completions", body).json()["choices"][0];
  const json logprobs = whole["logprobs"];
  const json ids = server().post("/v1/dsv4/tokenize", {{"prompt", "Hi there"}}).json()["tokens"];
  const size_t size = 1 + ids.size() + 2;  // the beginning of the sentence, which the text has not
  ASSERT_EQ(logprobs["tokens"].size(), size);
  ASSERT_EQ(logprobs["token_logprobs"].size(), size);
  EXPECT_TRUE(logprobs["token_logprobs"][0].is_null()) << "nothing predicts the first token";
  std::string joined;
  for (size_t i = 0; i < logprobs["tokens"].size(); ++i) {
    EXPECT_EQ(logprobs["text_offset"][i], joined.size());
    if (i > 0) {
      EXPECT_EQ(logprobs["token_logprobs"][i], -0.5);
    }
    if (i > 0) joined += logprobs["tokens"][i];
  }
  EXPECT_EQ(joined, whole["text"]);
  EXPECT_TRUE(joined.starts_with("Hi there"));
  body["stream"] = true;
  std::string text;
  size_t tokens = 0;
  for (const SseEvent& event : events_of(server().post("/v1/completions", body).body)) {
    if (event.data == "[DONE]") continue;
    const json choice = event.json()["choices"][0];
    text += choice["text"];
    if (choice["logprobs"].is_object()) tokens += choice["logprobs"]["tokens"].size();
  }
  EXPECT_EQ(text, joined);
  EXPECT_EQ(tokens, size);
}

// By the bundled model: the likelihood of a text is that of its tokens, one by one.
TEST(Service, PromptsAreScoredByTheModel) {
  ScriptedServer model("");
  const json body = {{"prompt", "Once upon a time, there was a little girl."},
                     {"echo", true},
                     {"logprobs", 1},
                     {"max_tokens", 1},
                     {"temperature", 0}};
  const json logprobs = model.post("/v1/completions", body).json()["choices"][0]["logprobs"];
  const json& tokens = logprobs["tokens"];
  std::string text;
  ASSERT_GT(tokens.size(), 5u);
  for (size_t i = 1; i + 1 < tokens.size(); ++i) {
    text += tokens[i];
    // The next token's likeliest, as the model chooses it after the same text.
    const json next =
        model
            .post("/v1/completions",
                  {{"prompt", text}, {"logprobs", 1}, {"max_tokens", 1}, {"temperature", 0}})
            .json()["choices"][0]["logprobs"];
    const json top = logprobs["top_logprobs"][i + 1];
    const std::string likeliest = next["tokens"][0];
    ASSERT_TRUE(top.contains(likeliest)) << i << top;
    EXPECT_NEAR(top[likeliest], next["token_logprobs"][0], 1e-3) << i;
    for (const json& other : top) EXPECT_LE(other, top[likeliest]) << i;
    EXPECT_LE(logprobs["token_logprobs"][i + 1], top[likeliest]) << i;
  }
}

TEST(Service, MessagesHaveTheirEventOrder) {
  json body = {{"max_tokens", 1000},
               {"messages", json::array({user("weather")})},
               {"thinking", {{"type", "enabled"}, {"budget_tokens", 1024}}},
               {"tools", json::array({{{"name", "get"}, {"input_schema", json::object()}}})}};
  const json whole = server().post("/v1/messages", body).json();
  EXPECT_EQ(whole["type"], "message");
  ASSERT_EQ(whole["content"].size(), 3u) << whole;
  EXPECT_EQ(whole["content"][0]["type"], "thinking");
  EXPECT_TRUE(whole["content"][0]["signature"].get<std::string>().starts_with("dsv4."));
  EXPECT_EQ(whole["content"][1],
            json({{"type", "text"}, {"text", "I call."}, {"citations", nullptr}}));
  EXPECT_EQ(whole["content"][2]["input"], json({{"city", "Oslo"}, {"days", 2}}));
  EXPECT_EQ(whole["stop_reason"], "tool_use");
  EXPECT_GT(whole["usage"]["input_tokens"], 0);

  body["stream"] = true;
  const Answer answer = server().post("/v1/messages", body);
  const std::vector<std::string> block = {"content_block_start", "content_block_delta",
                                          "content_block_stop"};
  std::vector<std::string> want = {"message_start", "ping"};
  for (int i = 0; i < 3; ++i) want.insert(want.end(), block.begin(), block.end());
  want.insert(want.end(), {"message_delta", "message_stop"});
  EXPECT_EQ(names_of(answer), want);
  EXPECT_FALSE(answer.headers.contains("x-dsv4-warning"));

  // The answer goes back with its result.
  body.erase("stream");
  body["messages"].push_back({{"role", "assistant"}, {"content", whole["content"]}});
  body["messages"].push_back({{"role", "user"},
                              {"content", json::array({{{"type", "tool_result"},
                                                        {"tool_use_id", whole["content"][2]["id"]},
                                                        {"content", "sunny"}}})}});
  EXPECT_EQ(server().post("/v1/messages", body).status, 200);
  const json counted = server().post("/v1/messages/count_tokens", body).json();
  EXPECT_GT(counted["input_tokens"], whole["usage"]["input_tokens"]);
}

TEST(Service, ResponsesNumberTheirEvents) {
  json body = {{"input", "weather"},
               {"reasoning", {{"effort", "high"}}},
               {"include", {"reasoning.encrypted_content"}},
               {"tools", json::array({{{"type", "function"}, {"name", "get"}}})},
               {"stream", true}};
  const Answer answer = server().post("/v1/responses", body);
  ASSERT_EQ(answer.status, 200) << answer.body;
  int64_t number = 0;
  json last;
  for (const SseEvent& event : events_of(answer.body)) {
    last = event.json();
    EXPECT_EQ(last["sequence_number"], number++);
    EXPECT_EQ(last["type"], event.event);
  }
  EXPECT_EQ(last["type"], "response.completed");
  const auto names = names_of(answer);
  EXPECT_EQ(names[0], "response.created");
  EXPECT_EQ(names[1], "response.in_progress");
  EXPECT_EQ(names[2], "response.output_item.added");
  EXPECT_EQ(answer.body.find("[DONE]"), std::string::npos);
  body["stream"] = false;
  const json whole = server().post("/v1/responses", body).json();
  EXPECT_EQ(whole["status"], "completed");
  // The scripted reasoning is content here: the bundled model does not think by default.
  const json output = whole["output"];
  ASSERT_GE(output.size(), 2u);
  EXPECT_EQ(output.back()["type"], "function_call");
  EXPECT_EQ(output.back()["arguments"], R"({"city": "Oslo", "days": 2})");
  EXPECT_EQ(output[output.size() - 2]["phase"], "commentary");
}

TEST(Service, CustomToolsGiveTheirText) {
  ScriptedServer custom(
      R"({"output": "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"sh\">\n<｜DSML｜parameter name=\"input\" string=\"true\">ls -l</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"})");
  const json whole =
      custom
          .post("/v1/responses",
                {{"input", "x"}, {"tools", json::array({{{"type", "custom"}, {"name", "sh"}}})}})
          .json();
  EXPECT_EQ(whole["output"][0]["type"], "custom_tool_call");
  EXPECT_EQ(whole["output"][0]["input"], "ls -l");
}

// With a bias that leaves one token, that token is certain for the draw and not for the model.
TEST(Service, LogprobsMayBeThoseOfTheDraw) {
  for (const bool processed : {false, true}) {
    ScriptedServer server("", {.context = 512, .processed_logprobs = processed});
    json body = chat_body("Hi");
    body["logprobs"] = true;
    body["top_logprobs"] = 5;
    body["max_tokens"] = 2;
    body["logit_bias"] = {{"77", 100}};
    const json tokens = server.choice(body)["logprobs"]["content"];
    ASSERT_EQ(tokens.size(), 2u);
    for (const json& token : tokens) {
      if (processed) {
        EXPECT_GT(token["logprob"].get<double>(), -1e-6);
        EXPECT_EQ(token["top_logprobs"].size(), 1u) << token;
      } else {
        EXPECT_LT(token["logprob"].get<double>(), -1);
        EXPECT_EQ(token["top_logprobs"].size(), 5u) << token;
      }
    }
  }
}

}  // namespace
}  // namespace dsv4::test
