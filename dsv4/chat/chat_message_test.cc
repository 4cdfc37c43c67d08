#include "dsv4/chat/chat_message.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/chat/chat_data.h"

namespace dsv4 {
namespace {

using Json = nlohmann::ordered_json;

std::string next_id() {
  static int n = 0;
  return "call_" + std::to_string(n++);
}

constexpr std::string_view kOutput =
    "R1\nR2</think>\n\nHi<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter "
    "name=\"a\" string=\"true\">x\"y</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke "
    "name=\"g\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";

TEST(ChatDeltas, JoinToTheWholeMessage) {
  ChatMessage whole;
  ChatDeltas deltas(next_id);
  const ParserOptions options{.stage = OutputStage::kReason, .tools = true};
  OutputParser one(options, whole), other(options, deltas);
  std::vector<Json> stream;
  for (const test::Event& event : test::events_of(kOutput)) {
    if (const Marker* marker = std::get_if<Marker>(&event)) {
      one.marker(*marker);
      other.marker(*marker);
    } else {
      one.text(std::get<std::string>(event));
      for (const char byte : std::get<std::string>(event)) other.text({&byte, 1});
    }
    for (Json& delta : deltas.take()) stream.push_back(std::move(delta));
  }
  EXPECT_EQ(one.finish(OutputEnd::kModel), FinishReason::kToolCalls);
  other.finish(OutputEnd::kModel);
  for (Json& delta : deltas.take()) stream.push_back(std::move(delta));

  std::string reasoning, content;
  std::vector<std::pair<std::string, std::string>> calls;
  std::set<std::string> ids;
  for (const Json& delta : stream) {
    ASSERT_EQ(delta.size(), 1u);
    reasoning += delta.value("reasoning_content", "");
    content += delta.value("content", "");
    if (!delta.contains("tool_calls")) continue;
    const Json& call = delta["tool_calls"].at(0);
    if (call.contains("id")) {
      EXPECT_EQ(call.at("index"), calls.size());
      EXPECT_EQ(call.at("type"), "function");
      ids.insert(call.at("id"));
      calls.emplace_back(call.at("function").at("name"), "");
    }
    EXPECT_EQ(call.at("index"), calls.size() - 1);
    calls.back().second += call.at("function").at("arguments").get<std::string>();
  }
  EXPECT_EQ(reasoning, "R1\nR2");
  EXPECT_EQ(content, "Hi");
  EXPECT_EQ(ids.size(), 2u);
  ASSERT_EQ(calls.size(), whole.calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i].first, whole.calls[i].name);
    EXPECT_EQ(calls[i].second, whole.calls[i].arguments);
  }
}

TEST(ChatMessage, Json) {
  ChatMessage message;
  message.on_call("f");
  message.on_arguments("{}");
  const Json json = message_json(message, [] { return std::string("call_1"); });
  EXPECT_EQ(json.dump(),
            R"({"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function",)"
            R"("function":{"name":"f","arguments":"{}"}}]})");
  EXPECT_EQ(message_json(ChatMessage()).dump(), R"({"role":"assistant","content":""})");
}

TEST(ChatMessage, IdsOfCalls) {
  std::set<std::string> ids;
  for (int i = 0; i < 1000; ++i) ids.insert(random_call_id());
  EXPECT_EQ(ids.size(), 1000u);
  for (const std::string& id : ids) {
    EXPECT_EQ(id.size(), 29u);
    EXPECT_TRUE(id.starts_with("call_"));
    EXPECT_TRUE(
        std::all_of(id.begin() + 5, id.end(), [](unsigned char c) { return std::isalnum(c); }));
  }
}

}  // namespace
}  // namespace dsv4
