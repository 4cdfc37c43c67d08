// What `dsv4 inspect` shows, beside the ops of a step (inspect_step.h).

#pragma once

#include <string>

namespace dsv4::apps {

// dsv4 inspect MODEL: architecture, schedule, tensors and ledger of a checkpoint on one screen.
// Everything that `run` reads before its first token is read and checked here too. verify: every
// value of every tensor is read; throws kBadInput after the report when one of them is NaN or
// infinite.
void inspect_model(const std::string& name_or_folder, bool json, bool verify);

// dsv4 inspect device: the GPUs of this machine, and whether this program can use them.
void inspect_device(bool json);

// dsv4 inspect prompt|completion MODEL: the chat encoding and the output parser, one JSON object
// per line in and out (docs/chat.md). Of the model only its small files are read.
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
