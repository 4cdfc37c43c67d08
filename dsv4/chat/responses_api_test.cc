#include "dsv4/chat/translated.h"

#include <gtest/gtest.h>

namespace dsv4 {
namespace {

Translated translate(const std::string& body) {
  return chat_of_responses(parse_json(body, "test"), [](const std::string& text) {
    return text == "sealed" ? std::optional<std::string>("opened") : std::nullopt;
  });
}

std::string chat(const std::string& body) {
  return to_json(translate(body).chat);
}

std::string refused(const std::string& body) {
  try {
    translate(body);
  } catch (const RequestError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ResponsesApi, TextIsOneUserMessage) {
  EXPECT_EQ(chat(R"({"input": "Hi", "instructions": "Be brief.", "max_output_tokens": 7})"),
            R"({"messages": [{"role": "system", "content": "Be brief."}, )"
            R"({"role": "user", "content": "Hi"}], "max_completion_tokens": 7})");
}

TEST(ResponsesApi, ItemsOfOneTurnAreOneMessage) {
  EXPECT_EQ(
      chat(R"({"input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Q"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "sealed"},
        {"type": "message", "role": "assistant",
         "content": [{"type": "output_text", "text": "A"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "ls"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "2"}]})"),
      R"({"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A", )"
      R"("reasoning_content": "opened", "tool_calls": [)"
      R"({"id": "c1", "function": {"name": "f", "arguments": "{}"}}, )"
      R"({"id": "c2", "function": {"name": "g", "arguments": {"input": "ls"}}}]}, )"
      R"({"role": "tool", "content": "1", "tool_call_id": "c1"}, )"
      R"({"role": "tool", "content": "2", "tool_call_id": "c2"}]})");
}

TEST(ResponsesApi, ReasoningIsItsContentThenWhatIsSealedThenEmpty) {
  const auto reasoning = [](const std::string& fields) {
    return chat(R"({"input": [{"type": "reasoning", )" + fields +
                R"(}, {"role": "assistant", "content": "A"}]})");
  };
  EXPECT_NE(reasoning(R"("content": [{"type": "reasoning_text", "text": "R"}],
                         "encrypted_content": "sealed")")
                .find(R"("reasoning_content": "R")"),
            std::string::npos);
  EXPECT_NE(
      reasoning(R"("encrypted_content": "of another server")").find(R"("reasoning_content": "")"),
      std::string::npos);
}

TEST(ResponsesApi, MapsTools) {
  const Translated request = translate(
      R"({"input": "x", "tool_choice": {"type": "allowed_tools", "mode": "required",
                          "tools": [{"type": "function", "name": "f"}, {"type": "web_search"}]},
          "tools": [{"type": "function", "name": "f", "parameters": {"a": 1}, "strict": true},
                    {"type": "custom", "name": "sh"}, {"type": "web_search"},
                    {"type": "namespace", "name": "ns",
                     "tools": [{"type": "function", "name": "g"}]}]})");
  EXPECT_EQ(to_json(*request.chat.find("tools")),
            R"([{"type": "function", "function": {"name": "f", "description": "", )"
            R"("parameters": {"a": 1}, "strict": true}}, {"type": "function", "function": )"
            R"({"name": "sh", "description": "", "parameters": {"type": "object", "properties": )"
            R"({"input": {"type": "string"}}, "required": ["input"]}}}, {"type": "function", )"
            R"("function": {"name": "ns__g", "description": ""}}])");
  EXPECT_TRUE(request.custom_tools.contains("sh"));
  EXPECT_EQ(request.ignored, (std::vector<std::string>{"tools[2]"}));
  EXPECT_EQ(to_json(*request.chat.find("tool_choice")),
            R"({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": )"
            R"([{"type": "function", "function": {"name": "f"}}]}})");
}

// Hosted tools are left out: a choice among nothing but these is a choice of none.
TEST(ResponsesApi, AChoiceOfHostedToolsOnly) {
  const Translated request = translate(
      R"({"input": "x", "tools": [{"type": "function", "name": "f"}, {"type": "web_search"}],
          "tool_choice": {"type": "allowed_tools", "mode": "auto",
                          "tools": [{"type": "web_search"}]}})");
  EXPECT_EQ(request.chat.find("tool_choice")->text, "none");
}

TEST(ResponsesApi, RefusesWhatWouldLoseTheConversation) {
  for (const char* body :
       {R"({"input": "x", "previous_response_id": "r"})", R"({"input": "x", "conversation": "c"})",
        R"({"input": "x", "prompt": {"id": "p"}})", R"({"input": "x", "background": true})",
        R"({"input": [{"type": "item_reference", "id": "i"}]})",
        R"({"input": [{"type": "computer_call"}]})"}) {
    EXPECT_NE(refused(body).find("not supported"), std::string::npos) << body;
  }
}

}  // namespace
}  // namespace dsv4
