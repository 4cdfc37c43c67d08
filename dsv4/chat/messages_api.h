// A body of Anthropic's Messages API as a chat body (docs/spec/serving.md 2.5, 3.2).
//
//   system, messages[text, thinking, tool_use, tool_result], tools, tool_choice, thinking,
//   output_config -> messages, tools, tool_choice, response_format, reasoning_effort
//
// A trailing assistant message is continued. Images, documents that are no text, and tools without
// a schema are refused.

#pragma once

#include "dsv4/chat/translated.h"

namespace dsv4 {

Translated chat_of_messages(const JsonValue& body);

}  // namespace dsv4
