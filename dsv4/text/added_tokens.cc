#include "dsv4/text/added_tokens.h"

#include <algorithm>

namespace dsv4 {

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::sort(tokens_.begin(), tokens_.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  for (const AddedToken& token : tokens_)
    first_byte_[static_cast<uint8_t>(token.content[0])] = true;
}

std::optional<AddedTokenFinder::Match> AddedTokenFinder::find(std::string_view text,
                                                              size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!first_byte_[static_cast<uint8_t>(text[begin])]) continue;
    if (const auto match = longest_at(text, begin)) return match;
  }
  return std::nullopt;
}

// Narrows the sorted list, byte by byte, to the contents that match the text so far. If a content
// ends at this byte, it is the first of them.
std::optional<AddedTokenFinder::Match> AddedTokenFinder::longest_at(std::string_view text,
                                                                    size_t begin) const {
  std::optional<Match> best;
  auto low = tokens_.begin(), high = tokens_.end();
  for (size_t size = 0; begin + size < text.size() && low != high; ++size) {
    const char byte = text[begin + size];
    const auto byte_at = [size](const AddedToken& token) {
      return size < token.content.size() ? static_cast<uint8_t>(token.content[size]) : -1;
    };
    const int wanted = static_cast<uint8_t>(byte);
    low =
        std::partition_point(low, high, [&](const auto& token) { return byte_at(token) < wanted; });
    high = std::partition_point(low, high,
                                [&](const auto& token) { return byte_at(token) == wanted; });
    if (low != high && low->content.size() == size + 1) best = {begin, begin + size + 1, low->id};
  }
  return best;
}

std::optional<int32_t> AddedTokenFinder::id(std::string_view content) const {
  const auto at =
      std::partition_point(tokens_.begin(), tokens_.end(),
                           [&](const AddedToken& token) { return token.content < content; });
  if (at == tokens_.end() || at->content != content) return std::nullopt;
  return at->id;
}

}  // namespace dsv4
