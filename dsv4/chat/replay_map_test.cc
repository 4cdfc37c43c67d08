#include "dsv4/chat/replay_map.h"

#include <gtest/gtest.h>

#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/chat/replay_file.h"
#include "tests/chat/chat_data.h"
#include "tests/harness/temp_folder.h"

namespace dsv4 {
namespace {

using Json = nlohmann::ordered_json;

ChatTurn turn(const std::string& text, const std::string& reasoning = "") {
  return {.kind = ChatTurn::Kind::kAssistant, .text = text, .reasoning = reasoning};
}
TurnKey key(int i) {
  return turn_key("", false, false, turn(std::to_string(i)));
}
RecordedTurn ids(std::vector<int32_t> values) {
  return {std::move(values), "x"};
}

TEST(ReplayMap, KeysDifferWhereTheTurnDoes) {
  ChatTurn called = turn("a");
  called.calls.push_back({.id = "1", .name = "f", .arguments = parse_json(R"({"a": 1})", "")});
  ChatTurn renamed = called;
  renamed.calls[0].name = "g";
  ChatTurn other_id = called;
  other_id.calls[0].id = "2";
  const std::vector<TurnKey> keys = {
      turn_key("", false, false, turn("a")),     turn_key("s", false, false, turn("a")),
      turn_key("", true, false, turn("a")),      turn_key("", false, true, turn("a")),
      turn_key("", false, true, turn("a", "r")), turn_key("", false, false, turn("b")),
      turn_key("", false, false, called),        turn_key("", false, false, renamed)};
  for (size_t i = 0; i < keys.size(); ++i) {
    for (size_t k = 0; k < i; ++k) EXPECT_NE(keys[i], keys[k]) << i << " " << k;
  }
  EXPECT_EQ(turn_key("", false, false, called), turn_key("", false, false, other_id))
      << "ids of calls are not rendered";
  EXPECT_EQ(turn_key("", false, false, turn("a", "r")), keys[0])
      << "reasoning that is not rendered does not count";
}

TEST(ReplayMap, TheLongestUnusedTurnLeaves) {
  ReplayMap map(2);
  map.record(key(1), ids({1}));
  map.record(key(2), ids({2}));
  ASSERT_NE(map.find(key(1)), nullptr);
  map.record(key(3), ids({3}));
  EXPECT_EQ(map.find(key(2)), nullptr);
  EXPECT_EQ(map.find(key(1))->ids, std::vector<int32_t>{1});
  map.record(key(1), ids({9, 9}));
  EXPECT_EQ(map.find(key(1))->ids.size(), 2u);
  EXPECT_EQ(map.turns(), 2u);
}

TEST(ReplayMap, BytesAreBounded) {
  ReplayMap map(1000, 4096);
  for (int i = 0; i < 100; ++i) {
    map.record(key(i), ids(std::vector<int32_t>(50)));
    ASSERT_LE(map.bytes(), 4096u);
  }
  EXPECT_GT(map.turns(), 3u);
  map.record(key(1000), ids(std::vector<int32_t>(5000)));
  EXPECT_EQ(map.find(key(1000)), nullptr);
}

// An output, byte by byte and marker by marker as no encoder would split it.
std::vector<int32_t> written(std::string_view spelled) {
  std::vector<int32_t> ids;
  for (const test::Event& event : test::events_of(spelled)) {
    if (const Marker* marker = std::get_if<Marker>(&event)) {
      ids.push_back(*test::marker_ids().id(*marker));
    } else {
      test::marker_text_encoder().encode(std::get<std::string>(event), ids);
    }
  }
  return ids;
}

std::vector<int32_t> prompt_ids(const Conversation& conversation, ReplayMap* map,
                                const std::string& salt = "salt") {
  return encode(render(conversation, map, salt), test::marker_ids(), test::marker_text_encoder());
}

bool contains(const std::vector<int32_t>& ids, const std::vector<int32_t>& part) {
  return std::search(ids.begin(), ids.end(), part.begin(), part.end()) != ids.end();
}

// The request that follows an answer, as a client builds it from what it got.
Json next_request(std::string_view output, bool tools, bool thinking) {
  ChatMessage message;
  const auto stage = thinking ? OutputStage::kReason : OutputStage::kContent;
  OutputParser parser({.stage = stage, .tools = tools}, message);
  for (const test::Event& event : test::events_of(output)) {
    if (const Marker* marker = std::get_if<Marker>(&event)) parser.marker(*marker);
    if (const auto* text = std::get_if<std::string>(&event)) parser.text(*text);
  }
  parser.finish(OutputEnd::kModel);
  int calls = 0;
  Json body = {{"messages", {{{"role", "user"}, {"content", "Q"}}}}};
  body["messages"].push_back(
      message_json(message, [&] { return "call_" + std::to_string(calls++); }));
  for (int i = 0; i < calls; ++i) {
    body["messages"].push_back(
        {{"role", "tool"}, {"tool_call_id", "call_" + std::to_string(i)}, {"content", "r"}});
  }
  body["thinking"] = {{"type", thinking ? "enabled" : "disabled"}};
  if (tools) body["tools"] = Json::parse(R"([{"type": "function", "function": {"name": "f"}}])");
  return body;
}

TEST(ReplayMap, SurvivesInAFile) {
  const test::TempFolder folder;
  const std::string path = replay_file(folder.path(), "{}");
  ReplayMap map;
  load_replay_map(map, path, "{}");
  EXPECT_EQ(map.turns(), 0u) << "there is no file yet";
  for (int i = 0; i < 3; ++i) map.record(key(i), {{i, 2 * i, 70'000}, std::to_string(i)});
  map.record(key(9), {});
  map.find(key(0));
  save_replay_map(map, path, "{}");
  ReplayMap same;
  load_replay_map(same, path, "{}");
  EXPECT_EQ(same.turns(), 4u);
  EXPECT_EQ(same.bytes(), map.bytes());
  EXPECT_EQ(same.find(key(2))->ids, (std::vector<int32_t>{2, 4, 70'000}));
  EXPECT_EQ(same.find(key(2))->text, "2");
  EXPECT_TRUE(same.find(key(9))->ids.empty());
  ReplayMap small(2);
  load_replay_map(small, path, "{}");
  EXPECT_TRUE(small.find(key(0))) << "used last";
  EXPECT_FALSE(small.find(key(1)));

  EXPECT_NE(replay_file(folder.path(), "{ }"), path);
  EXPECT_THROW(load_replay_map(same, path, "{ }"), Error) << "another tokenizer";
  const std::string whole = read_text_file(path);
  for (size_t byte = 0; byte < whole.size(); ++byte) {
    std::string changed = whole;
    changed[byte] = static_cast<char>(changed[byte] ^ 4);
    folder.write("changed", changed);
    EXPECT_THROW(load_replay_map(same, folder.file("changed"), "{}"), Error) << byte;
    folder.write("changed", whole.substr(0, byte));
    EXPECT_THROW(load_replay_map(same, folder.file("changed"), "{}"), Error) << byte;
  }
  EXPECT_EQ(same.turns(), 4u);
}

TEST(ReplayMap, RendersTheIdsThatTheModelWrote) {
  // Spellings that the renderer would not choose: newlines, spaces inside tags and JSON.
  const std::string call =
      "\n<｜DSML｜tool_calls>\n\n<｜DSML｜invoke name = \"f\">\n<｜DSML｜parameter string=false "
      "name=a> [1,2]</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>";
  for (const bool tools : {false, true}) {
    for (const bool thinking : {false, true}) {
      const std::string answer = "\n\nHello  world" + (tools ? call : std::string());
      const std::string output = thinking ? "\nR\n</think>" + answer : answer;
      ReplayMap map;
      const ParserOptions parser{.stage = thinking ? OutputStage::kReason : OutputStage::kContent,
                                 .tools = tools};
      record_output(map, "salt", parser, written(output), test::marker_tokenizer(),
                    test::marker_ids());
      const Conversation next = test::read_request(next_request(output, tools, thinking));
      const auto part = written(tools ? output : answer);
      EXPECT_TRUE(contains(prompt_ids(next, &map), part)) << tools << thinking;
      EXPECT_FALSE(contains(prompt_ids(next, nullptr), part)) << tools << thinking;
      EXPECT_FALSE(contains(prompt_ids(next, &map, "other"), part)) << "another client's";
    }
  }
}

// The client has the arguments as they were coerced, and sends those back.
TEST(ReplayMap, ACoercedCallIsFound) {
  const std::string output =
      "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" "
      "string=\"true\">5</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  const ParserOptions parser{.tools = true, .types = {{"f", {{"a", JsonTypes::kInteger}}}}};
  ReplayMap map;
  record_output(map, "", parser, written(output), test::marker_tokenizer(), test::marker_ids());
  ChatTurn turn;
  turn.calls.push_back({.name = "f", .arguments = parse_json(R"({"a": 5})", "arguments")});
  EXPECT_NE(map.find(turn_key("", true, false, turn)), nullptr);
  turn.calls[0].arguments = parse_json(R"({"a": "5"})", "arguments");
  EXPECT_EQ(map.find(turn_key("", true, false, turn)), nullptr);
}

TEST(ReplayMap, OutputsThatWereCutAreNotRecorded) {
  ReplayMap map;
  record_output(map, "", {.tools = true},
                written("<｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"a\">1"),
                test::marker_tokenizer(), test::marker_ids());
  EXPECT_EQ(map.turns(), 0u);
}

}  // namespace
}  // namespace dsv4
