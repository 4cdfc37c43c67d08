#include "dsv4/chat/translated.h"

#include <gtest/gtest.h>

#include "dsv4/chat/request.h"

namespace dsv4 {
namespace {

std::string chat(const std::string& body) {
  return to_json(chat_of_messages(parse_json(body, "test")).chat);
}

std::string refused(const std::string& body) {
  try {
    const Translated request = chat_of_messages(parse_json(body, "test"));
    try {
      read_chat_request(request.chat, {});
    } catch (const RequestError& error) {
      return client_error(error, request).what();
    }
    return "accepted";
  } catch (const RequestError& error) {
    return error.what();
  }
}

TEST(MessagesApi, MapsAConversation) {
  EXPECT_EQ(
      chat(R"({"system": [{"type": "text", "text": "S"}], "max_tokens": 5, "stop_sequences": ["x"],
               "messages": [
                 {"role": "user", "content": "Q"},
                 {"role": "assistant", "content": [
                   {"type": "thinking", "thinking": "R", "signature": "s"},
                   {"type": "redacted_thinking", "data": "d"},
                   {"type": "text", "text": "A"},
                   {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}]},
                 {"role": "user", "content": [
                   {"type": "tool_result", "tool_use_id": "t1", "content": [
                     {"type": "text", "text": "2"}], "is_error": true},
                   {"type": "text", "text": "Q2"}]}]})"),
      R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}, )"
      R"({"role": "assistant", "content": "A", "reasoning_content": "R", "tool_calls": )"
      R"([{"id": "t1", "function": {"name": "f", "arguments": {"a": 1}}}]}, )"
      R"({"role": "tool", "content": "2", "tool_call_id": "t1"}, )"
      R"({"role": "user", "content": "Q2"}], "max_tokens": 5, "stop": ["x"]})");
}

TEST(MessagesApi, SystemInsideMessagesIsAReminder) {
  EXPECT_EQ(chat(R"({"messages": [{"role": "system", "content": "N"}]})"),
            R"({"messages": [{"role": "user", "content": "<system-reminder>\nN\n)"
            R"(</system-reminder>"}]})");
}

TEST(MessagesApi, ATrailingAssistantIsContinued) {
  EXPECT_EQ(chat(R"({"messages": [{"role": "user", "content": "Q"},
                                  {"role": "assistant", "content": "A"}]})"),
            R"({"messages": [{"role": "user", "content": "Q"}, )"
            R"({"role": "assistant", "content": "A", "prefix": true}]})");
}

TEST(MessagesApi, MapsToolsEffortAndFormat) {
  EXPECT_EQ(
      chat(R"({"messages": [{"role": "user", "content": "Q"}],
                     "tools": [{"name": "f", "input_schema": {}}],
                     "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
                     "output_config": {"effort": "max",
                                       "format": {"type": "json_schema", "schema": {}}}})"),
      R"({"messages": [{"role": "user", "content": "Q"}], "tools": [{"type": "function", )"
      R"("function": {"name": "f", "description": "", "parameters": {}}}], )"
      R"("tool_choice": "required", "parallel_tool_calls": false, "reasoning_effort": "max", )"
      R"("response_format": {"type": "json_schema", "json_schema": {"schema": {}}}})");
}

TEST(MessagesApi, DocumentsOfPlainText) {
  EXPECT_EQ(chat(R"({"messages": [{"role": "user", "content": [{"type": "document", "title": "T",
                     "source": {"type": "text", "media_type": "text/plain", "data": "D"}},
                     {"type": "text", "text": "Q"}]}]})"),
            chat(R"({"messages": [{"role": "user", "content": [
                     {"type": "text", "text": "T\n\nD"}, {"type": "text", "text": "Q"}]}]})"));
}

TEST(MessagesApi, ErrorsNameTheClientsFields) {
  const std::string user = R"({"role": "user", "content": "Q"})";
  EXPECT_EQ(refused(R"({"messages": []})"), "messages: at least one message is required");
  EXPECT_EQ(refused(R"({"messages": [{"role": "tool", "content": "x"}]})"),
            "messages[0].role: want user, assistant or system");
  EXPECT_EQ(refused(R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})"),
            "messages[0].content[0]: content of type image is not supported");
  EXPECT_EQ(refused(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"},
                        {"type": "tool_result", "tool_use_id": "t"}]}]})"),
            "messages[0].content[1]: tool_result blocks must come first in the content");
  EXPECT_EQ(refused(R"({"messages": [)" + user + R"(], "tools": [{"type": "web_search_20250305",
                        "name": "w"}]})"),
            "tools[0].type: tools without an input_schema are not supported, got "
            "web_search_20250305: declare a tool of your own");
  EXPECT_EQ(refused(R"({"messages": [{"role": "user", "content": [{"type": "document",
                        "source": {"type": "url", "url": "x"}}]}]})"),
            "messages[0].content[0]: content of type document with a source of type url is not "
            "supported");
  EXPECT_TRUE(refused(R"({"system": "S", "messages": [)" + user + R"(, {"role": "user", "content":
                        [{"type": "tool_result", "tool_use_id": "t9", "content": "x"}]}]})")
                  .starts_with("messages[1].content[0]"));
  EXPECT_TRUE(refused(R"({"messages": [)" + user + R"(], "output_config": {"effort": "huge"}})")
                  .starts_with("output_config.effort: want none"));
}

}  // namespace
}  // namespace dsv4
