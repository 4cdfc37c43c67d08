// Messages as the encoder that ships with the checkpoints renders them (docs/spec/serving.md 1.6),
// for tests and `dsv4 inspect prompt` only: messages stay in place, system texts are not joined,
// tools and response_format sit on a system or developer message, and internal tasks have their
// tokens.
//
// Body: messages, thinking or thinking_mode, drop_thinking, reasoning_effort.

#pragma once

#include "dsv4/chat/prompt.h"
#include "dsv4/chat/request.h"

namespace dsv4 {

Prompt render_encoder_level(const JsonValue& body, const ChatOptions& options);

// Body of /v1/completions: `prompt`, in which markers are markers unless parse_special is false,
// and, to fill in the middle, the `suffix` that comes after the output.
Prompt render_completion(const JsonValue& body);

}  // namespace dsv4
