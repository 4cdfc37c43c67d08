// A request of another API as the body of a chat request, so that one reader checks them all, and
// where each piece came from, so that its errors name the client's own fields.

#pragma once

#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "dsv4/chat/fields.h"
#include "dsv4/chat/json_value.h"
#include "dsv4/chat/request_error.h"

namespace dsv4 {

struct Translated {
  JsonValue chat = JsonValue::object();
  std::vector<std::string> message_paths;                    // of chat.messages, in their order
  std::unordered_map<std::string, std::string> field_paths;  // chat's name -> the client's
  std::vector<std::string> ignored;                          // fields and values without effect
  std::unordered_set<std::string> custom_tools;              // that take plain text (Responses)
  bool completion = false;  // `chat` is the body of a completion (Ollama's raw prompts)

  // Copies a field of the client's body, if it is there, to the chat body's field `to`.
  void copy(const Field& field, const char* to);
  // Appends a message that came from `path`.
  void add_message(JsonValue message, std::string path);
};

// A body of Anthropic's Messages API as a chat body (docs/spec/serving.md 2.5, 3.2).
//
//   system, messages[text, thinking, tool_use, tool_result], tools, tool_choice, thinking,
//   output_config -> messages, tools, tool_choice, response_format, reasoning_effort
//
// A trailing assistant message is continued. Images, documents that are no text, and tools without
// a schema are refused.
Translated chat_of_messages(const JsonValue& body);

// The reasoning that an `encrypted_content` of this server holds; nothing where it is not ours.
using Unseal = std::function<std::optional<std::string>(const std::string&)>;

// A body of OpenAI's Responses API as a chat body (docs/spec/serving.md 2.5, 3.2).
//
//   instructions, input[message, reasoning, function_call, function_call_output, ...] -> messages
//   tools function, custom, namespace (`ns__name`); text.format; reasoning.effort
//
// The server keeps no conversations: what refers to one is refused.
Translated chat_of_responses(const JsonValue& body, const Unseal& unseal);

// {"role": ROLE, "content": TEXT}
JsonValue text_message(std::string role, std::string text);

// `error` in the client's words.
RequestError client_error(const RequestError& error, const Translated& request);

}  // namespace dsv4
