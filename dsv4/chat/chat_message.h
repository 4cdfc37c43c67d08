// What the parser reports, as the chat API gives it (docs/spec/serving.md 2.5): whole, or as
// deltas.

#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "dsv4/chat/conversation.h"
#include "dsv4/chat/output_sink.h"

namespace dsv4 {

// A finished answer.
class ChatMessage : public OutputSink {
 public:
  struct Call {
    std::string name, arguments;
    bool complete = false;

    friend bool operator==(const Call&, const Call&) = default;
  };

  void on_reasoning(std::string_view text) override { reasoning += text; }
  void on_content(std::string_view text) override { content += text; }
  void on_call(const std::string& name) override { calls.push_back({.name = name}); }
  void on_arguments(std::string_view json) override { calls.back().arguments += json; }
  void on_call_end() override { calls.back().complete = true; }

  std::string reasoning, content;
  std::vector<Call> calls;
};

// The turn that a client sends back of it. All calls must be complete.
ChatTurn turn_of(const ChatMessage& message);

// `prefix` and 24 letters and digits that cannot be guessed.
std::string random_id(std::string_view prefix);
// Ids of calls: "call_...".
std::string random_call_id();

// The `message` of a choice; content is null where there are calls and no content.
nlohmann::ordered_json message_json(const ChatMessage& message,
                                    const std::function<std::string()>& new_id = random_call_id);

// The `delta` objects of a stream, in order, without the first one that names the role.
class ChatDeltas : public OutputSink {
 public:
  explicit ChatDeltas(std::function<std::string()> new_id = random_call_id)
      : new_id_(std::move(new_id)) {}

  void on_reasoning(std::string_view text) override;
  void on_content(std::string_view text) override;
  void on_call(const std::string& name) override;
  void on_arguments(std::string_view json) override;
  void on_call_end() override {}

  // Returns the deltas since the last take().
  std::vector<nlohmann::ordered_json> take() { return std::exchange(deltas_, {}); }

 private:
  std::function<std::string()> new_id_;
  std::vector<nlohmann::ordered_json> deltas_;
  int64_t calls_ = 0;
};

}  // namespace dsv4
