// Conversation -> Prompt (docs/spec/serving.md 1.5):
//
//   prompt = BOS EFFORT HEAD turn* tail
//   HEAD   = system [tools] [response format]
//   tail   = ASST THINK | ASST /THINK | ASST /THINK and an open block of calls, if one must come
//
// docs/chat.md has the grammar with examples.

#pragma once

#include <string>

#include "dsv4/chat/conversation.h"
#include "dsv4/chat/prompt.h"

namespace dsv4 {

class ReplayMap;

// Turns that `replay` knows under `salt` are given as the ids that the model wrote. Null: none.
Prompt render(const Conversation& conversation, ReplayMap* replay = nullptr,
              const std::string& salt = {});

// Pieces that the encoder level (encoder_level.h) shares.
// Each schema on its own line between the head and tail of fixed_texts.h, after two newlines.
void add_tools(Prompt& prompt, const std::vector<std::string>& schemas);
void add_format(Prompt& prompt, const ResponseFormat& format);
// The block of calls, with the two newlines before it. `empty_line`: that of a call without
// arguments, which the released encoder writes and the released service does not.
void add_calls(Prompt& prompt, const std::vector<ToolCall>& calls, bool empty_line);

}  // namespace dsv4
