// The released encoder's own level (docs/spec/serving.md 1.6; docs/spec/dsv4.md 11.3). Its four
// golden files, which are not ours to keep here, are checked by tools/goldens/check_encoding.py.

#include "dsv4/chat/encoder_level.h"

#include <gtest/gtest.h>

#include "tests/chat/chat_data.h"

namespace dsv4 {
namespace {

std::string encoded(const char* messages, const char* mode = "chat", const char* more = "") {
  const std::string body =
      fmt::format(R"({{"messages": {}, "thinking_mode": "{}"{}}})", messages, mode, more);
  return test::notation(render_encoder_level(parse_json(body, "test"), {}));
}

constexpr const char* kTwoTurns = R"([{"role": "system", "content": "S"},
    {"role": "user", "content": "Q1"},
    {"role": "assistant", "content": "A1", "reasoning_content": "R1"},
    {"role": "user", "content": "Q2"}])";

TEST(EncoderLevel, WorkedExamples) {
  EXPECT_EQ(encoded(kTwoTurns), "{BOS}S{USER}Q1{ASST}{/THINK}A1{EOS}{USER}Q2{ASST}{/THINK}");
  EXPECT_EQ(encoded(kTwoTurns, "thinking"),
            "{BOS}S{USER}Q1{ASST}{/THINK}A1{EOS}{USER}Q2{ASST}{THINK}");
  EXPECT_EQ(encoded(kTwoTurns, "thinking", R"(, "drop_thinking": false)"),
            "{BOS}S{USER}Q1{ASST}{THINK}R1{/THINK}A1{EOS}{USER}Q2{ASST}{THINK}");
  EXPECT_EQ(encoded(kTwoTurns, "thinking", R"(, "reasoning_effort": "max")").substr(0, 11),
            "{BOS}{MAX}S");
}

TEST(EncoderLevel, SystemsStayAndCarryToolsAndFormat) {
  EXPECT_EQ(encoded(R"([{"role": "user", "content": "Q"},
      {"role": "system", "content": "S", "tools": [{"function": {"z": 1, "name": "f"}}],
       "response_format": {"a": 1}}])"),
            "{BOS}{USER}QS\n\n{TOOLS}{\"z\": 1, \"name\": \"f\"}{/TOOLS}\n\n## Response "
            "Format:\n\nYou MUST strictly adhere to the following schema to reply:\n{\"a\": 1}");
}

TEST(EncoderLevel, DevelopersAreUsersThatHistoryDropsWhenThinking) {
  const char* messages = R"([{"role": "developer", "content": "D"},
      {"role": "assistant", "content": "A"}, {"role": "developer", "content": "E"}])";
  EXPECT_EQ(encoded(messages), "{BOS}{USER}D{ASST}{/THINK}A{EOS}{USER}E{ASST}{/THINK}");
  EXPECT_EQ(encoded(messages, "thinking"), "{BOS}A{EOS}{USER}E{ASST}{THINK}");
  EXPECT_THROW(encoded(R"([{"role": "developer", "content": ""}])"), RequestError);
}

TEST(EncoderLevel, Tasks) {
  const auto task = [](const char* word, const char* mode) {
    return encoded(
        fmt::format(R"([{{"role": "user", "content": "Q", "task": "{}"}}])", word).c_str(), mode);
  };
  EXPECT_EQ(task("action", "chat"), "{BOS}{USER}Q{ASST}{/THINK}{action}");
  EXPECT_EQ(task("action", "thinking"), "{BOS}{USER}Q{ASST}{THINK}{action}");
  EXPECT_EQ(task("read_url", "thinking"), "{BOS}{USER}Q{read_url}");
  EXPECT_THROW(task("nothing", "chat"), RequestError);
  EXPECT_THROW(task("User", "chat"), RequestError);
  // The answer has no thinking part, and a user message does not join one with a task.
  EXPECT_EQ(encoded(R"([{"role": "user", "content": "Q", "task": "query"},
      {"role": "assistant", "content": "A", "reasoning_content": "R"}])",
                    "thinking"),
            "{BOS}{USER}Q{query}A{EOS}");
  EXPECT_EQ(encoded(R"([{"role": "user", "content": "a", "task": "query"},
      {"role": "user", "content": "b"}])"),
            "{BOS}{USER}a{USER}b{ASST}{/THINK}");
  EXPECT_EQ(encoded(R"([{"role": "assistant", "content": "A", "task": "title"}])"),
            "{BOS}A{EOS}{title}");
}

TEST(EncoderLevel, RunsMergeAndCallsKeepTheirEmptyLine) {
  EXPECT_EQ(encoded(R"([{"role": "user", "content": "Q"},
      {"role": "assistant", "content": "", "wo_eos": true, "tool_calls": [
        {"id": "1", "function": {"name": "f", "arguments": "{}"}},
        {"id": "2", "function": {"name": "g", "arguments": "{\"a\": 1}"}}]},
      {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "x"},
                                                         {"type": "image"}]},
      {"role": "user", "content": "U"}, {"role": "tool", "tool_call_id": "1", "content": "y"}])"),
            "{BOS}{USER}Q{ASST}{/THINK}\n\n<◆tool_calls>\n<◆invoke name=\"f\">\n\n</◆invoke>\n"
            "<◆invoke name=\"g\">\n<◆parameter name=\"a\" "
            "string=\"false\">1</◆parameter>\n</◆invoke>\n</◆tool_calls>{USER}<tool_result>y</"
            "tool_result>\n\nU\n\n<tool_result>x\n\n[Unsupported "
            "image]</tool_result>{ASST}{/THINK}");
}

TEST(EncoderLevel, NothingFollowsATrailingAssistant) {
  EXPECT_EQ(encoded(R"([{"role": "assistant", "content": "A"},
      {"role": "assistant", "content": "B"}])"),
            "{BOS}A{EOS}B{EOS}");
}

std::string completion(const char* body) {
  return test::notation(render_completion(parse_json(body, "test")));
}

TEST(Completion, RawPromptsHaveMarkers) {
  EXPECT_EQ(completion(R"({"prompt": "a<｜User｜>b<think"})"), "{BOS}a{USER}b<think");
  EXPECT_EQ(completion(R"({"prompt": "<｜begin▁of▁sentence｜>a"})"), "{BOS}a");
  EXPECT_EQ(completion(R"({"prompt": "a<think>", "parse_special": false})"), "{BOS}a<think>");
}

TEST(Completion, FillInTheMiddle) {
  EXPECT_EQ(completion(R"({"prompt": "a", "suffix": "b<think>"})"),
            "{BOS}{begin}a{hole}b<think>{end}");
}

}  // namespace
}  // namespace dsv4
