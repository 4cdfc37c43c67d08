// Finds the first end of any of a few strings in bytes that arrive one by one (Knuth-Morris-Pratt,
// one state for each string).

#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dsv4 {

class StopMatcher {
 public:
  // None of the strings is empty.
  explicit StopMatcher(const std::vector<std::string>& strings);

  bool empty() const { return patterns_.empty(); }
  // The index of the string that ends with this byte: of several, the first of the list.
  std::optional<size_t> push(char byte);
  const std::string& string(size_t index) const { return patterns_[index].text; }
  // Latest bytes that could become the beginning of a match.
  size_t held() const;
  void reset();

 private:
  struct Pattern {
    std::string text;
    std::vector<size_t> fallback;  // [n] the longest proper border of the first n bytes
    size_t matched = 0;
  };
  std::vector<Pattern> patterns_;
};

}  // namespace dsv4
