// A body of OpenAI's Responses API as a chat body (docs/spec/serving.md 2.5, 3.2).
//
//   instructions, input[message, reasoning, function_call, function_call_output, ...] -> messages
//   tools function, custom, namespace (`ns__name`); text.format; reasoning.effort
//
// The server keeps no conversations: what refers to one is refused.

#pragma once

#include <functional>
#include <optional>

#include "dsv4/chat/translated.h"

namespace dsv4 {

// The reasoning that an `encrypted_content` of this server holds; nothing where it is not ours.
using Unseal = std::function<std::optional<std::string>(const std::string&)>;

Translated chat_of_responses(const JsonValue& body, const Unseal& unseal);

}  // namespace dsv4
