// Splits text into pieces; BPE merges only inside a piece (docs/spec/dsv4.md 11.1).
//
// A sequence of patterns: each one splits every piece of the previous step into its matches and the
// gaps between them; both are kept ("isolated"). A pattern gets one piece at a time and cannot look
// past its ends.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "dsv4/text/regex.h"

namespace dsv4 {

class PreTokenizer {
 public:
  explicit PreTokenizer(const std::vector<std::string>& patterns);

  // Appends the pieces of `text` (valid UTF-8) in order; none is empty.
  void split(std::string_view text, Regex::Scratch& scratch,
             std::vector<std::string_view>& pieces) const;

 private:
  void split_from(size_t step, std::string_view text, Regex::Scratch& scratch,
                  std::vector<std::string_view>& pieces) const;

  std::vector<Regex> steps_;
};

}  // namespace dsv4
