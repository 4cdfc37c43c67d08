// What `dsv4 chat` shows of an answer, as it comes. Control bytes that a model writes are never
// printed: no answer can move the cursor, change the title or read the clipboard.

#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "dsv4/chat/chat_message.h"

namespace dsv4::apps {

class ChatPrinter : public OutputSink {
 public:
  // `terminal`: thinking is dim; where it is hidden, a line stands for it.
  ChatPrinter(bool terminal, bool show_thinking)
      : terminal_(terminal), show_thinking_(show_thinking) {}

  void on_reasoning(std::string_view text) override;
  void on_content(std::string_view text) override;
  void on_call(const std::string& name) override;
  void on_arguments(std::string_view json) override;
  void on_call_end() override;
  void end();

  ChatMessage message;

 private:
  void end_thinking();

  const bool terminal_, show_thinking_;
  bool thinking_ = false;
  std::chrono::steady_clock::time_point begin_;  // of the thinking
};

// Without control characters except newlines and tabs.
std::string shown_text(std::string_view text);

}  // namespace dsv4::apps
