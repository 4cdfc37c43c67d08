// Ollama's routes: the answers of the same engine in the words of its clients.

#include <sstream>

#include "dsv4/chat/ollama_api.h"
#include "tests/server/scripted_server.h"
#include "tests/server/service_data.h"

namespace dsv4 {
namespace {

using nlohmann::json;
using test::Answer;
using test::ask;
using test::ScriptedServer;
using test::user;

const char* const kScript =
    R"({"match": "tool_result", "output": "It is sunny."}
{"match": "weather", "output": "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Oslo</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"}
{"match": "ponder", "output": "Hm.</think>\n\nDone."}
{"match": "forever", "output": "tick ", "repeat": 300}
{"match": "silence", "output": ""}
{"output": "Hello there."}
)";

ScriptedServer& server() {
  static ScriptedServer one(kScript);
  return one;
}

json messages(const std::string& text) {
  return {{"model", "demo"}, {"messages", json::array({user(text)})}};
}

// The lines of a stream; every one must be an object, and only the last is done.
std::vector<json> lines_of(const Answer& answer) {
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.headers.at("content-type"), "application/x-ndjson");
  std::vector<json> lines;
  std::istringstream text(answer.body);
  for (std::string line; std::getline(text, line);) {
    lines.push_back(json::parse(line, nullptr, false));
    EXPECT_TRUE(lines.back().is_object()) << line;
  }
  EXPECT_FALSE(lines.empty());
  for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i]["done"], i + 1 == lines.size());
  return lines;
}

json weather_tool() {
  const json schema = {
      {"type", "object"},
      {"properties", {{"city", {{"type", "string"}}}, {"days", {{"type", "integer"}}}}}};
  return {{"type", "function"},
          {"function", {{"name", "get"}, {"description", "Weather"}, {"parameters", schema}}}};
}

TEST(ServiceOllama, ChatsStreamWhereNothingIsSaid) {
  const std::vector<json> lines = lines_of(server().post("/api/chat", messages("Hi")));
  std::string text;
  for (const json& line : lines) {
    EXPECT_EQ(line["model"], "demo");
    EXPECT_EQ(line["message"]["role"], "assistant");
    EXPECT_TRUE(line["created_at"].get<std::string>().ends_with("Z"));
    text += line["message"]["content"];
  }
  EXPECT_EQ(text, "Hello there.");
  const json& last = lines.back();
  EXPECT_EQ(last["done_reason"], "stop");
  EXPECT_GT(last["prompt_eval_count"], 0);
  EXPECT_GT(last["eval_count"], 0);
  EXPECT_GE(last["total_duration"], last["prompt_eval_duration"]);
  EXPECT_GT(last["total_duration"], 0);
  EXPECT_GT(last["eval_duration"], 0);
}

// No token comes, so the answer itself takes no time.
TEST(ServiceOllama, AnAnswerWithoutATokenHasItsTimes) {
  const json last = lines_of(server().post("/api/chat", messages("silence"))).back();
  EXPECT_EQ(last["eval_duration"], 0);
  EXPECT_GE(last["prompt_eval_duration"], 0);
  EXPECT_LE(last["prompt_eval_duration"], last["total_duration"]);
}

TEST(ServiceOllama, OrAnswerAsAWhole) {
  json body = messages("Hi");
  body["stream"] = false;
  body["keep_alive"] = "5m";
  const Answer answer = server().post("/api/chat", body);
  EXPECT_EQ(answer.headers.at("content-type"), "application/json");
  EXPECT_EQ(answer.headers.at("x-dsv4-warning"), "keep_alive");  // the one field without a meaning
  EXPECT_EQ(answer.json()["message"], json({{"role", "assistant"}, {"content", "Hello there."}}));
  EXPECT_EQ(answer.json()["done"], true);
  body["model"] = "demo:latest";  // as its clients write a name without a tag
  EXPECT_EQ(server().post("/api/chat", body).json()["model"], "demo:latest");
  body["model"] = "none:latest";
  const Answer unknown = server().post("/api/chat", body);
  EXPECT_EQ(unknown.status, 404);
  EXPECT_TRUE(unknown.json()["error"].is_string()) << unknown.body;
  // Other APIs have no tags.
  EXPECT_EQ(
      server().chat({{"model", "demo:latest"}, {"messages", json::array({user("x")})}}).status,
      404);
}

TEST(ServiceOllama, ThinkingIsAFieldOfItsOwn) {
  json body = messages("ponder");
  body["think"] = true;
  std::string thinking, text;
  for (const json& line : lines_of(server().post("/api/chat", body))) {
    thinking += line["message"].value("thinking", "");
    text += line["message"]["content"];
  }
  EXPECT_EQ(thinking, "Hm.");
  EXPECT_EQ(text, "Done.");
  body["think"] = "high";
  body["stream"] = false;
  EXPECT_EQ(server().post("/api/chat", body).json()["message"]["thinking"], "Hm.");
  body["think"] = "enormous";
  const Answer refused = server().post("/api/chat", body);
  EXPECT_EQ(refused.status, 400);
  EXPECT_TRUE(refused.json()["error"].get<std::string>().starts_with("think: want"))
      << refused.body;
  const Answer generated =
      server().post("/api/generate", {{"prompt", "ponder"}, {"think", true}, {"stream", false}});
  EXPECT_EQ(generated.json()["thinking"], "Hm.");
  EXPECT_EQ(generated.json()["response"], "Done.");
}

// A call comes whole, with an object of arguments; its result comes back without an id.
TEST(ServiceOllama, ToolsGoThereAndBack) {
  json body = messages("weather");
  body["tools"] = json::array({weather_tool()});
  std::vector<json> calls;
  for (const json& line : lines_of(server().post("/api/chat", body))) {
    if (line["message"].contains("tool_calls")) calls.push_back(line["message"]["tool_calls"]);
  }
  ASSERT_EQ(calls.size(), 1u);
  ASSERT_EQ(calls[0].size(), 1u);
  const json function = calls[0][0]["function"];
  EXPECT_EQ(function["name"], "get");
  EXPECT_EQ(function["arguments"], json({{"city", "Oslo"}, {"days", 3}}));
  body["stream"] = false;
  EXPECT_EQ(
      server().post("/api/chat", body).json()["message"]["tool_calls"][0]["function"]["arguments"],
      json({{"city", "Oslo"}, {"days", 3}}));
  body["messages"].push_back({{"role", "assistant"},
                              {"content", ""},
                              {"tool_calls", json::array({{{"function", function}}})}});
  body["messages"].push_back({{"role", "tool"}, {"tool_name", "get"}, {"content", "sun"}});
  EXPECT_EQ(server().post("/api/chat", body).json()["message"]["content"], "It is sunny.");
  // A result without a call is named as the client has it.
  const Answer alone = server().post(
      "/api/chat", {{"messages", json::array({user("x"), {{"role", "tool"}, {"content", "y"}}})}});
  EXPECT_EQ(alone.status, 400);
  EXPECT_TRUE(alone.json()["error"].get<std::string>().starts_with("messages[1]")) << alone.body;
}

// Two calls whose results come in the other order: tool_name decides.
TEST(ServiceOllama, ResultsFindTheirCallsByName) {
  const auto call = [](const char* name) {
    return json{{"function", {{"name", name}, {"arguments", json::object()}}}};
  };
  const auto rendered = [&](json results) {
    json list = json::array(
        {user("x"),
         {{"role", "assistant"}, {"content", ""}, {"tool_calls", {call("a"), call("b")}}}});
    for (json& result : results) list.push_back(std::move(result));
    const JsonValue body = parse_json(json{{"messages", list}}.dump(), "the body");
    std::string ids;
    for (const JsonValue& message : chat_of_ollama_chat(body).chat.find("messages")->items) {
      if (const JsonValue* id = message.find("tool_call_id")) ids += id->text + " ";
    }
    return ids;
  };
  const auto result = [](const char* name) {
    return json{{"role", "tool"}, {"tool_name", name}, {"content", name}};
  };
  EXPECT_EQ(rendered(json::array({result("a"), result("b")})), "call_0 call_1 ");
  EXPECT_EQ(rendered(json::array({result("b"), result("a")})), "call_1 call_0 ");
  EXPECT_EQ(rendered(json::array({result("?"), result("?")})), "call_0 call_1 ");
}

TEST(ServiceOllama, GeneratesFromAPrompt) {
  std::string text;
  const json body = {{"model", "demo"}, {"prompt", "Hi"}, {"system", "Be brief."}};
  const std::vector<json> lines = lines_of(server().post("/api/generate", body));
  for (const json& line : lines) text += line["response"];
  EXPECT_EQ(text, "Hello there.");
  EXPECT_EQ(lines.back()["done_reason"], "stop");
  const json raw = {{"prompt", "Hi"}, {"raw", true}, {"stream", false}};
  EXPECT_EQ(server().post("/api/generate", raw).json()["response"], "Hello there.");
}

TEST(ServiceOllama, OptionsReachTheEngine) {
  json body = {{"prompt", "forever"}, {"stream", false}, {"options", {{"num_predict", 4}}}};
  json answer = server().post("/api/generate", body).json();
  EXPECT_EQ(answer["eval_count"], 4);
  EXPECT_EQ(answer["done_reason"], "length");
  body["options"] = {{"num_predict", -1}, {"num_ctx", 8192}, {"stop", {"tick tick"}}};
  const Answer stopped = server().post("/api/generate", body);
  EXPECT_EQ(stopped.json()["done_reason"], "stop") << stopped.body;
  EXPECT_EQ(stopped.headers.at("x-dsv4-warning"), "options.num_ctx");
  body["raw"] = true;
  body["options"] = {{"num_predict", 2}};
  EXPECT_EQ(server().post("/api/generate", body).json()["eval_count"], 2);
  body["options"].erase("num_predict");  // a completion without a limit: not the 16 of OpenAI's
  EXPECT_GT(server().post("/api/generate", body).json()["eval_count"], 100);
  const json wrong = {{"temperature", 9},    {"top_k", "x"},     {"seed", 1.5},
                      {"repeat_penalty", 0}, {"num_predict", 0}, {"stop", 3}};
  for (const auto& [key, value] : wrong.items()) {
    const Answer refused =
        server().post("/api/generate", {{"prompt", "x"}, {"options", {{key, value}}}});
    EXPECT_EQ(refused.status, 400) << key;
    EXPECT_TRUE(refused.json()["error"].get<std::string>().starts_with("options." + key))
        << refused.body;
  }
}

// A body without text asks whether the model is there.
TEST(ServiceOllama, LoadingIsAnswered) {
  const json chat =
      server().post("/api/chat", {{"model", "demo"}, {"messages", json::array()}}).json();
  EXPECT_EQ(chat["done_reason"], "load");
  EXPECT_EQ(chat["message"]["content"], "");
  EXPECT_EQ(server().post("/api/generate", {{"model", "demo"}}).json()["done_reason"], "load");
  EXPECT_EQ(server().post("/api/generate", {{"keep_alive", 0}}).json()["done_reason"], "unload");
  EXPECT_EQ(server().post("/api/generate", {{"model", "none"}}).status, 404);
}

TEST(ServiceOllama, SaysWhichModelsThereAre) {
  const uint16_t port = server().port();
  const json tags = ask(port, "GET", "/api/tags").json();
  ASSERT_EQ(tags["models"].size(), 2u);
  EXPECT_EQ(tags["models"][0]["name"], "demo");
  EXPECT_EQ(tags["models"][0]["digest"].get<std::string>().size(), 64u);
  EXPECT_EQ(ask(port, "GET", "/api/ps").json()["models"][0]["context_length"], 4096);
  const json shown = server().post("/api/show", {{"model", "demo"}}).json();
  EXPECT_EQ(shown["capabilities"], json({"completion", "tools", "thinking"}));
  EXPECT_EQ(shown["model_info"]["deepseek4.context_length"], 4096);
  EXPECT_EQ(server().post("/api/show", {{"name", "other/name"}}).status, 200);
  EXPECT_EQ(server().post("/api/show", {{"model", "none"}}).status, 404);
  EXPECT_EQ(ask(port, "GET", "/api/version").json()["dsv4"], "test");
}

TEST(ServiceOllama, WhatIsNotThereSaysSo) {
  const json picture = {{"prompt", "x"}, {"images", {"aGk="}}};
  const Answer generated = server().post("/api/generate", picture);
  EXPECT_EQ(generated.status, 400);
  EXPECT_EQ(generated.json()["error"], "images: this model reads text, no images");
  json body = messages("x");
  body["messages"][0]["images"] = {"aGk="};
  EXPECT_EQ(server().post("/api/chat", body).json()["error"],
            "messages[0].images: this model reads text, no images");
  for (const char* path : {"/api/pull", "/api/push", "/api/create", "/api/copy", "/api/embed",
                           "/api/embeddings", "/api/blobs/sha256:0"}) {
    const Answer refused = server().post(path, {{"model", "demo"}});
    EXPECT_EQ(refused.status, 501) << path;
    EXPECT_TRUE(refused.json()["error"].get<std::string>().starts_with(std::string(path)))
        << refused.body;
  }
  EXPECT_EQ(ask(server().port(), "DELETE", "/api/delete", "{}").status, 501);
  for (const json& format : json::array({"xml", 3, json::array()})) {
    const Answer refused = server().post("/api/generate", {{"prompt", "x"}, {"format", format}});
    EXPECT_EQ(refused.status, 400) << format;
    EXPECT_TRUE(refused.json()["error"].get<std::string>().starts_with("format:")) << refused.body;
  }
}

// Bodies of every wrong type at every place: an error in a line, never a crash or another status.
TEST(ServiceOllama, WrongTypesAreErrors) {
  const json whole = {
      {"model", "demo"},
      {"messages",
       {user("x"),
        {{"role", "assistant"},
         {"content", "y"},
         {"thinking", "z"},
         {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", json::object()}}}}}}},
        {{"role", "tool"}, {"content", "r"}, {"tool_name", "f"}}}},
      {"tools", {weather_tool()}},
      {"format", "json"},
      {"options", {{"temperature", 1}, {"stop", {"q"}}}},
      {"stream", false},
      {"think", false}};
  const json flat = whole.flatten();
  const json wrongs = json::array({nullptr, -7, "w", json::array({1}), json::object({{"k", 1}})});
  for (const auto& [place, value] : flat.items()) {
    for (const json& wrong : wrongs) {
      json body = whole;
      body[json::json_pointer(place)] = wrong;
      const Answer answer = server().post("/api/chat", body);
      EXPECT_TRUE(answer.status == 200 || answer.status == 400 || answer.status == 404)
          << place << " " << wrong << answer.body;
      EXPECT_TRUE(answer.status == 200 || answer.json()["error"].is_string()) << answer.body;
    }
  }
}

// The demo itself under a schema.
TEST(ServiceOllama, FormatsHold) {
  ScriptedServer model("");
  const json schema = {
      {"type", "object"},
      {"properties", {{"age", {{"type", "integer"}}}, {"tall", {{"type", "boolean"}}}}},
      {"required", {"age", "tall"}},
      {"additionalProperties", false}};
  json body = messages("Tom is tall and 9.");
  body.update(
      {{"stream", false}, {"format", schema}, {"options", {{"num_predict", 400}, {"seed", 3}}}});
  const json answer = model.post("/api/chat", body).json();
  ASSERT_EQ(answer["done_reason"], "stop") << answer;
  const json content = json::parse(answer["message"]["content"].get<std::string>());
  EXPECT_TRUE(content["age"].is_number_integer());
  EXPECT_TRUE(content["tall"].is_boolean());
  body["format"] = "json";  // any object; cut or whole, it begins as one
  const std::string text = model.post("/api/chat", body).json()["message"]["content"];
  EXPECT_EQ(text.substr(text.find_first_not_of(" \n"), 1), "{") << text;
}

}  // namespace
}  // namespace dsv4
