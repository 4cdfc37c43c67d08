// Makes untrusted text safe to show: names, keys, patterns and messages that come out of a file
// must not reach a terminal as they are, where they could move the cursor or set a title.

#pragma once

#include <string>
#include <string_view>

namespace dsv4 {

inline constexpr size_t kMaxQuote = 120;

// For a part of a line: control and non-ASCII bytes become '?', and what exceeds kMaxQuote bytes is
// replaced by "...".
std::string quotable(std::string_view text);

// For a whole line that may hold a user's own words: valid UTF-8 stays as it is, except that
// control characters (also those of U+0080..U+009F, and the marks that reverse the direction of
// text) and invalid bytes become '?'. What exceeds `max_bytes` is replaced by "...".
std::string printable(std::string_view text, size_t max_bytes);

}  // namespace dsv4
