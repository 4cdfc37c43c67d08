// dsv4 inspect prompt|completion MODEL: the chat encoding and the output parser, one JSON object
// per line in and out (docs/chat.md). Of the model only its small files are read.

#pragma once

#include <string>

namespace dsv4::apps {

struct InspectChatOptions {
  std::string model;
  std::string effort_profile = "auto";  // official, preview
  std::string thinking = "auto";        // on, off: where a request does not say
  bool lenient_tools = false, require_reasoning = false;
};

// A line that cannot be read or rendered becomes {"error": {"status", "message"}}.
void inspect_prompt(const InspectChatOptions& options);
void inspect_completion(const InspectChatOptions& options);

}  // namespace dsv4::apps
