// Added tokens: texts such as <｜User｜> that each map to one id and are found before any other
// processing.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dsv4 {

struct AddedToken {
  int32_t id = 0;
  std::string content;  // not empty, valid UTF-8
  bool special = false;
  bool normalized = false;  // matched in a second pass, in the text that the first left over
};

// Finds a fixed set of texts: the leftmost match, and the longest one at that position.
class AddedTokenFinder {
 public:
  struct Match {
    size_t begin, end;  // byte offsets
    int32_t id;
  };

  AddedTokenFinder() = default;
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  // The first match at or after `from`.
  std::optional<Match> find(std::string_view text, size_t from) const;
  // The token whose content is exactly `content`.
  std::optional<int32_t> id(std::string_view content) const;

 private:
  std::optional<Match> longest_at(std::string_view text, size_t begin) const;

  std::vector<AddedToken> tokens_;      // by content
  std::array<bool, 256> first_byte_{};  // does any content start with this byte?
};

}  // namespace dsv4
