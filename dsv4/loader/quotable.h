// Makes untrusted text safe to quote in a one-line error.

#pragma once

#include <string>
#include <string_view>

namespace dsv4 {

inline constexpr size_t kMaxQuote = 120;

// Control and non-ASCII bytes become '?', and what exceeds kMaxQuote bytes is replaced by "...".
std::string quotable(std::string_view text);

}  // namespace dsv4
