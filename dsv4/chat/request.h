// A chat request body (OpenAI's /v1/chat/completions) as a Conversation
// (docs/spec/serving.md 1.2, 1.4).
//
// Read here: messages, tools, tool_choice, response_format (and vLLM's guided_json, guided_regex,
// guided_choice, guided_grammar and structured_outputs: other names of it), thinking,
// reasoning_effort, chat_template_kwargs, drop_thinking, continue_final_message. Sampling fields
// and limits are the server's. Whatever is refused is a RequestError.

#pragma once

#include "dsv4/chat/conversation.h"
#include "dsv4/chat/fields.h"

namespace dsv4 {

struct ChatOptions {
  EffortProfile profile = EffortProfile::kOfficial;
  bool default_thinking = true;    // where the request says nothing about thinking
  bool lenient_tools = false;      // unmatched tool results are no error
  bool require_reasoning = false;  // reasoning that would be rendered may not be missing
};

Conversation read_chat_request(const JsonValue& body, const ChatOptions& options);

ResponseFormat read_response_format(const Field& body);

// The request's thinking, effort and drop_thinking.
void read_effort(const Field& body, const ChatOptions& options, Conversation& conversation);

}  // namespace dsv4
