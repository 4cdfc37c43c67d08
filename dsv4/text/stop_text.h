// Ends an answer at the first of several texts, while it arrives in pieces: a stop text may be cut
// by any piece, so what could still become one is held back.

#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dsv4 {

class StopText {
 public:
  // Empty stops are ignored.
  explicit StopText(std::vector<std::string> stops);

  // The text that cannot belong to a stop any more. Once a stop has been found, everything before
  // it has been returned, and later pieces are dropped.
  std::string push(std::string_view piece);
  // What was held back, at the end of the answer.
  std::string finish();
  bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string pending_;
  bool found_ = false;
};

}  // namespace dsv4
