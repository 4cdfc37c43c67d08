// A request of another API as the body of a chat request, so that one reader checks them all, and
// where each piece came from, so that its errors name the client's own fields.

#pragma once

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

// {"role": ROLE, "content": TEXT}
JsonValue text_message(std::string role, std::string text);

// `error` in the client's words.
RequestError client_error(const RequestError& error, const Translated& request);

}  // namespace dsv4
