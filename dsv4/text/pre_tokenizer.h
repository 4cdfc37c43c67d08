// Cuts text into the pieces inside which BPE merges (spec 11.1).
//
// A sequence of patterns: each cuts every piece of the step before into its matches and the gaps
// between them; both are kept ("isolated"). A pattern sees one piece at a time: it cannot look
// beyond its ends.

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
