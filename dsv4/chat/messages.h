// `messages` of a chat request as the turns of a Conversation (docs/spec/serving.md 1.4): system
// texts are joined, runs of user and tool messages become one turn, tool results are checked
// against the calls and put into their order.

#pragma once

#include "dsv4/chat/conversation.h"
#include "dsv4/chat/fields.h"
#include "dsv4/chat/request.h"

namespace dsv4 {

// Tools and response_format of the conversation have been read before.
void read_messages(const Field& body, const ChatOptions& options, Conversation& conversation);

// One user message or tool result of a user turn.
struct UserBlock {
  bool is_result = false;
  std::string call_id;  // of a result
  std::string text;     // of a result with its tags
};
UserBlock result_block(std::string call_id, std::string_view text);

// The results, in the places where results stand, by the order of their calls; an unknown id counts
// as that of the first call.
void sort_results(const std::vector<ToolCall>& calls, std::vector<UserBlock>& blocks);

}  // namespace dsv4
