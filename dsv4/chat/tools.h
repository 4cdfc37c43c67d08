// Tools of a request: definitions, the choice among them, and calls in the history
// (docs/spec/serving.md 1.4).

#pragma once

#include <vector>

#include "dsv4/chat/conversation.h"
#include "dsv4/chat/fields.h"

namespace dsv4 {

// Fills tools, tool_choice and chosen_tool from the request body.
void read_tools(const Field& body, Conversation& conversation);

// A schema in the order that strict tools are rendered in: in every schema `type` comes first; in
// objects `properties`, no additional ones, and all of them required follow.
JsonValue strict_schema(const JsonValue& schema, const std::string& path);

// `tool_calls` of an assistant message; absent is none. Ids may be missing where `lenient`.
std::vector<ToolCall> read_tool_calls(const Field& calls, bool lenient);

// Arguments of a call, text or already an object, as an object.
JsonValue read_arguments(const Field& arguments);

}  // namespace dsv4
