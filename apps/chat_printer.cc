#include "apps/chat_printer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "dsv4/base/error.h"

namespace dsv4::apps {
namespace {

constexpr std::string_view kDim = "\033[2m", kPlain = "\033[0m";

// A signal may interrupt a write that waits for the terminal.
void write_out(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno != EINTR) fail(ErrorCode::kIo, "cannot write to standard output");
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

std::string shown_text(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool c1 =
        byte == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (c1) {
      ++i;  // both of its bytes
    } else if ((byte >= 0x20 && byte != 0x7f) || byte == '\n' || byte == '\t') {
      out += text[i];
    }
  }
  return out;
}

void ChatPrinter::on_reasoning(std::string_view text) {
  message.on_reasoning(text);
  if (!thinking_) begin_ = std::chrono::steady_clock::now();
  if (terminal_ && !thinking_) write_out(show_thinking_ ? kDim : "\033[2m(thinking)");
  thinking_ = true;
  if (show_thinking_) write_out(shown_text(text));
}

void ChatPrinter::end_thinking() {
  if (!thinking_) return;
  thinking_ = false;
  if (terminal_ && !show_thinking_) {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin_;
    write_out(fmt::format("\r(thought for {:.1f} s; /think show)", spent.count()));
  }
  if (terminal_) write_out(kPlain);
  if (terminal_ || show_thinking_) write_out(show_thinking_ ? "\n\n" : "\n");
}

void ChatPrinter::on_content(std::string_view text) {
  end_thinking();
  message.on_content(text);
  write_out(shown_text(text));
}

void ChatPrinter::on_call(const std::string& name) {
  end_thinking();
  message.on_call(name);
  write_out("\n[call " + shown_text(name) + " ");
}

void ChatPrinter::on_arguments(std::string_view json) {
  message.on_arguments(json);
  write_out(shown_text(json));
}

void ChatPrinter::on_call_end() {
  message.on_call_end();
  write_out("]\n");
}

void ChatPrinter::end() {
  end_thinking();
  write_out("\n");
}

}  // namespace dsv4::apps
