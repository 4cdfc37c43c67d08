// Bodies of Ollama's /api/chat and /api/generate as those of chat completions and of completions.
//
//   options.temperature, top_k, ...   fields of the same meaning; num_predict is max_tokens
//   format                            "json" or a schema: response_format
//   think                             thinking, or reasoning_effort where it is a level
//   tool messages                     answer the calls before them: by tool_name, else in order
//   prompt, system                    a chat of one turn; with `raw` or `suffix` a completion
//
// `stream` is on where a body does not say. Images are refused by name. Times that a model stays
// loaded (keep_alive) and sizes of its context (num_ctx) are the server's, not the request's.

#pragma once

#include "dsv4/chat/translated.h"

namespace dsv4 {

Translated chat_of_ollama_chat(const JsonValue& body);
// out.completion: whether it became the body of a completion.
Translated chat_of_ollama_generate(const JsonValue& body);

// Whether the body has no text, which wants the model to be loaded, or to be unloaded
// (keep_alive 0): "load", "unload" or nothing.
std::string ollama_load_reason(const JsonValue& body);

}  // namespace dsv4
