// Texts that a user types in a terminal, over libedit: the keys of Emacs, earlier texts with the
// arrows and Ctrl-R, a new line of the same text with Ctrl-J or Alt-Enter. What is pasted stays one
// text with its line ends. Earlier texts are kept in memory only.

#pragma once

#include <memory>
#include <string>

namespace dsv4::apps {

class LineEditor {
 public:
  enum class End { kText, kInterrupt, kEndOfInput };  // Enter, Ctrl-C, Ctrl-D in an empty line

  LineEditor();
  ~LineEditor();

  // `prompt`: plain characters. The text, without the line end of Enter, is in `text`.
  End read(const std::string& prompt, std::string& text);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsv4::apps
