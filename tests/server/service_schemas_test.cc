// Every shape of answers, events and errors that the server sends is valid under the published
// schemas of the vendors' APIs, whose facts are in api_schemas.json. What the fields mean is
// checked elsewhere: service_test, service_forms_test.

#include <set>

#include "tests/server/json_schema.h"
#include "tests/server/service_data.h"

namespace dsv4::test {
namespace {

const SchemaFile& schemas() {
  static const SchemaFile file("tests/server/api_schemas.json");
  return file;
}

// The routes that generate, and the definitions that their answers and events have.
struct RouteSchemas {
  const char *path, *whole, *event, *error;
};
constexpr RouteSchemas kChat{"/v1/chat/completions", "chat", "chat_chunk", "error"},
    kCompletions{"/v1/completions", "completion", "completion_chunk", "error"},
    kMessages{"/v1/messages", "message", "message_event", "message_error"},
    kResponses{"/v1/responses", "response", "response_event", "error"};

json merged(json body, const json& more) {
  body.update(more);
  return body;
}

void expect_valid(const json& value, const char* definition) {
  EXPECT_EQ(schemas().wrong(value, definition), "") << definition << ": " << value.dump(1);
}

// Sends the body, then the same with `stream`. Returns the streamed events.
std::vector<json> expect_valid_answers(ScriptedServer& server, const RouteSchemas& route,
                                       json body) {
  SCOPED_TRACE(route.path + body.dump());
  const Answer whole = server.post(route.path, body);
  EXPECT_EQ(whole.status, 200) << whole.body;
  expect_valid(whole.json(), route.whole);
  body["stream"] = true;
  std::vector<json> events;
  for (const SseEvent& event : events_of(server.post(route.path, body).body)) {
    if (event.data == "[DONE]") continue;
    events.push_back(event.json());
    expect_valid(events.back(), route.event);
  }
  EXPECT_GE(events.size(), 3u);
  return events;
}

json schema_of_weather() {
  return {{"type", "object"},
          {"properties", {{"city", {{"type", "string"}}}, {"days", {{"type", "integer"}}}}}};
}

TEST(ServiceSchemas, Chats) {
  const json tool = {{"type", "function"},
                     {"function", {{"name", "get"}, {"parameters", schema_of_weather()}}}};
  const json thinking = {{"thinking", {{"type", "enabled"}}}};
  const json bodies[] = {
      chat_body("Hi"),
      merged(chat_body("Hi"), {{"n", 2}, {"logprobs", true}, {"top_logprobs", 3}}),
      merged(chat_body("Hi"), {{"stream_options", {{"include_usage", true}}}}),
      merged(chat_body("Hi"),
             {{"stream_options", {{"include_usage", true}, {"continuous_usage_stats", true}}}}),
      merged(chat_body("ponder"), thinking),
      merged(chat_body("ponder"), merged(thinking, {{"logprobs", true}})),
      // Only the reasoning fits, so there are no logprobs of a content.
      merged(chat_body("ponder"), merged(thinking, {{"logprobs", true}, {"max_tokens", 2}})),
      merged(chat_body("weather"), {{"tools", {tool}}}),
      merged(chat_body("weather"), merged(thinking, {{"tools", {tool}}, {"logprobs", true}})),
      merged(chat_body("count"), {{"max_tokens", 3}}),
      merged(chat_body("count"), {{"stop", "four"}}),
      merged(chat_body("slow"), {{"deadline_ms", 150}}),
  };
  for (json body : bodies) {
    const bool streams_only = body.contains("stream_options");
    if (streams_only) body["stream"] = true;
    if (!streams_only) expect_valid_answers(server(), kChat, body);
    if (!streams_only) continue;
    for (const SseEvent& event : events_of(server().chat(body).body)) {
      if (event.data != "[DONE]") expect_valid(event.json(), kChat.event);
    }
  }
}

TEST(ServiceSchemas, Completions) {
  const json bodies[] = {
      {{"prompt", "Hi"}},
      {{"prompt", {"Hi", "count"}}, {"n", 2}, {"logprobs", 2}},
      {{"prompt", "Hi"}, {"echo", true}, {"logprobs", 1}, {"max_tokens", 2}},
      {{"prompt", "Hi"}, {"logprobs", 0}},
      {{"prompt", "count"}, {"max_tokens", 3}},
  };
  for (const json& body : bodies) expect_valid_answers(server(), kCompletions, body);
}

TEST(ServiceSchemas, Messages) {
  const auto message = [](const char* text, const json& more = json::object()) {
    return merged({{"max_tokens", 1000}, {"messages", json::array({user(text)})}}, more);
  };
  const json thinking = {{"thinking", {{"type", "enabled"}, {"budget_tokens", 1024}}}};
  const json tools = {
      {"tools", json::array({{{"name", "get"}, {"input_schema", schema_of_weather()}}})}};
  const json bodies[] = {
      message("Hi"),
      message("ponder", thinking),
      message("weather", merged(thinking, tools)),
      message("count", {{"max_tokens", 3}}),
      message("count", {{"stop_sequences", {"four"}}}),
  };
  std::set<std::string> types;
  for (const json& body : bodies) {
    for (const json& event : expect_valid_answers(server(), kMessages, body))
      types.insert(event["type"]);
  }
  EXPECT_EQ(types.size(), 7u) << "an event that none of the requests gives";
  const Answer counted = server().post("/v1/messages/count_tokens", message("Hi"));
  expect_valid(counted.json(), "message_tokens");
}

// What an answer has sent goes back with the next request, and no field of it is called ignored.
TEST(ServiceSchemas, BlocksOfAMessageGoBackWithoutAWarning) {
  json body = {{"max_tokens", 1000},
               {"messages", json::array({user("weather")})},
               {"thinking", {{"type", "enabled"}, {"budget_tokens", 1024}}},
               {"tools", json::array({{{"name", "get"}, {"input_schema", schema_of_weather()}}})}};
  const json content = server().post("/v1/messages", body).json()["content"];
  ASSERT_EQ(content.back()["type"], "tool_use") << content;
  body["messages"].push_back({{"role", "assistant"}, {"content", content}});
  body["messages"].push_back(user("Hi"));
  body["messages"].back()["content"] = json::array(
      {{{"type", "tool_result"}, {"tool_use_id", content.back()["id"]}, {"content", "sunny"}}});
  const Answer answer = server().post("/v1/messages", body);
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_FALSE(answer.headers.contains("x-dsv4-warning")) << answer.headers.at("x-dsv4-warning");
}

TEST(ServiceSchemas, Responses) {
  const json function = {
      {"type", "function"}, {"name", "get"}, {"parameters", schema_of_weather()}};
  const json format = {{"type", "json_schema"}, {"schema", {{"enum", {1, 2}}}}};
  const json bodies[] = {
      {{"input", "Hi"}},
      {{"input", "Hi"}, {"instructions", "Be brief."}, {"metadata", {{"run", "1"}}}},
      {{"input", "Hi"}, {"include", {"message.output_text.logprobs"}}, {"top_logprobs", 2}},
      {{"input", "ponder"}, {"reasoning", {{"effort", "high"}}}},
      {{"input", "weather"},
       {"reasoning", {{"effort", "high"}}},
       {"include", {"reasoning.encrypted_content"}},
       {"tools", {function}}},
      {{"input", "weather"},
       {"reasoning", {{"effort", "high"}}},
       {"tools", json::array({{{"type", "custom"}, {"name", "get"}}})}},
      {{"input", "weather"}, {"tools", json::array({{{"type", "function"}, {"name", "get"}}})}},
      {{"input", "count"}, {"max_output_tokens", 3}},
      {{"input", "Hi"}, {"text", nullptr}, {"tools", nullptr}, {"metadata", nullptr}},
      {{"input", "json"}, {"text", {{"format", format}}}, {"max_output_tokens", 20}},
      {{"input", "Hi"}, {"prompt_cache_key", "a"}, {"safety_identifier", "b"}},
  };
  ScriptedServer thinks(kServiceScript, {.thinking = true});
  std::set<std::string> types;
  for (const json& body : bodies) {
    ScriptedServer& asked = body.contains("reasoning") ? thinks : server();
    for (const json& event : expect_valid_answers(asked, kResponses, body))
      types.insert(event["type"]);
  }
  EXPECT_EQ(types.size(), 16u) << "an event that none of the requests gives: " << json(types);
  const Answer counted = server().post("/v1/responses/input_tokens", {{"input", "Hi"}});
  expect_valid(counted.json(), "response_tokens");
}

TEST(ServiceSchemas, ModelLists) {
  const json models = ask(server().port(), "GET", "/v1/models").json();
  expect_valid(models, "models");
  expect_valid(ask(server().port(), "GET", "/v1/models/demo").json(), "model");
}

// Errors before an answer, from a bad body, a missing model, a wrong method and content type.
TEST(ServiceSchemas, Errors) {
  for (const RouteSchemas& route : {kChat, kCompletions, kMessages, kResponses}) {
    SCOPED_TRACE(route.path);
    const auto expect_error = [&](const Answer& answer, int status) {
      EXPECT_EQ(answer.status, status) << answer.body;
      expect_valid(answer.json(), route.error);
    };
    expect_error(server().post(route.path, json::array()), 400);
    expect_error(server().post(route.path, {{"temperature", 9}}), 400);
    expect_error(ask(server().port(), "POST", route.path, "{"), 400);
    expect_error(ask(server().port(), "GET", route.path), 405);
    expect_error(server().post(route.path, {{"model", "none"},
                                            {"max_tokens", 1},
                                            {"prompt", "Hi"},
                                            {"input", "Hi"},
                                            {"messages", json::array({user("Hi")})}}),
                 404);
  }
  expect_valid(server().post("/v1/messages/batches", json::object()).json(), "message_error");
  expect_valid(server().post("/v1/batches", json::object()).json(), "error");
}

// An engine that fails in the middle of a stream, and before an answer. Each ends its server.
TEST(ServiceSchemas, FaultsInsideAStream) {
  const auto body_of = [](const RouteSchemas& route) {
    json body = {{"stream", true}, {"max_tokens", 100}};
    if (route.path == kCompletions.path) body["prompt"] = "fault";
    if (route.path == kResponses.path) {
      body["input"] = "fault";
      body.erase("max_tokens");
    }
    if (!body.contains("prompt") && !body.contains("input"))
      body["messages"] = json::array({user("fault")});
    return body;
  };
  for (const RouteSchemas& route : {kChat, kCompletions, kMessages, kResponses}) {
    SCOPED_TRACE(route.path);
    ScriptedServer fails(kServiceScript);
    const auto events = events_of(fails.post(route.path, body_of(route)).body);
    ASSERT_GE(events.size(), 2u);
    const json last = events.back().json();
    const bool is_error = last.contains("error");
    expect_valid(last, is_error ? route.error : route.event);
    EXPECT_TRUE(is_error || last["type"] == "response.failed") << last;
  }
}

// The checker itself: an answer without any one of its required fields is not valid, nor one whose
// fields have another type.
TEST(ServiceSchemas, AMissingFieldIsFound) {
  const json chat = chat_body("Hi");
  const json message = merged(chat, {{"max_tokens", 9}}), response = {{"input", "Hi"}};
  for (const auto& [route, body] :
       {std::pair{kChat, chat}, std::pair{kMessages, message}, std::pair{kResponses, response}}) {
    const json answer = server().post(route.path, body).json();
    expect_valid(answer, route.whole);
    size_t required = 0;
    for (const auto& [key, value] : answer.items()) {
      json without = answer, other = answer;
      without.erase(key);
      other[key] = {{"another", "type"}};
      required += !schemas().wrong(without, route.whole).empty();
      if (value.is_string() || value.is_number() || value.is_array()) {
        EXPECT_NE(schemas().wrong(other, route.whole), "") << key << " may be of any type";
      }
    }
    EXPECT_GE(required + 1, answer.size()) << "one may be left out: usage, or user";
  }
}

}  // namespace
}  // namespace dsv4::test
