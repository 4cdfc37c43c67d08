#include "dsv4/chat/stop_matcher.h"

#include <algorithm>

namespace dsv4 {

StopMatcher::StopMatcher(const std::vector<std::string>& strings) {
  for (const std::string& text : strings) {
    Pattern pattern{.text = text, .fallback = std::vector<size_t>(text.size() + 1)};
    size_t border = 0;
    for (size_t n = 2; n <= text.size(); ++n) {
      while (border > 0 && text[border] != text[n - 1]) border = pattern.fallback[border];
      if (text[border] == text[n - 1]) ++border;
      pattern.fallback[n] = border;
    }
    patterns_.push_back(std::move(pattern));
  }
}

std::optional<size_t> StopMatcher::push(char byte) {
  std::optional<size_t> found;
  for (size_t i = 0; i < patterns_.size(); ++i) {
    Pattern& p = patterns_[i];
    if (p.matched == p.text.size()) p.matched = p.fallback[p.matched];
    while (p.matched > 0 && p.text[p.matched] != byte) p.matched = p.fallback[p.matched];
    if (p.text[p.matched] == byte) ++p.matched;
    if (p.matched == p.text.size() && !found) found = i;
  }
  return found;
}

size_t StopMatcher::held() const {
  size_t most = 0;
  for (const Pattern& pattern : patterns_) most = std::max(most, pattern.matched);
  return most;
}

void StopMatcher::reset() {
  for (Pattern& pattern : patterns_) pattern.matched = 0;
}

}  // namespace dsv4
