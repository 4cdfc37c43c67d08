// What answers in `dsv4 chat`: the model in this process (chat_local.cc), or a server with OpenAI's
// API (chat_remote.cc). chat_terminal.h has the other side: what the user types and sees.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "apps/chat_model.h"
#include "apps/sampling_options.h"
#include "dsv4/chat/json_value.h"
#include "dsv4/chat/output_sink.h"

namespace dsv4::apps {

struct ChatAnswer {
  int64_t prompt_tokens = 0, tokens = 0;       // 0: the server does not say
  double first_seconds = 0, rest_seconds = 0;  // to the first token, and after it
};

class ChatBackend {
 public:
  virtual ~ChatBackend() = default;

  // `body`: `messages`, `thinking` and `reasoning_effort` of OpenAI's chat API. The answer goes to
  // `sink` as it comes, until it ends or `stopped` says true. What is not set in `sampling` is the
  // model's.
  virtual ChatAnswer answer(const JsonValue& body, const SamplingOptions& sampling,
                            OutputSink& sink, const std::function<bool()>& stopped) = 0;
  // Throws for messages that nothing could answer.
  virtual void check(const JsonValue& body) const = 0;
  // "12 of 4096 tokens"
  virtual std::string count_tokens(const JsonValue& body) = 0;
};

std::unique_ptr<ChatBackend> local_chat(const ChatModelOptions& options);

// `model`: empty: the first that the server names. `key`: empty: none.
std::unique_ptr<ChatBackend> remote_chat(const std::string& url, const std::string& model,
                                         const std::string& key);

}  // namespace dsv4::apps
