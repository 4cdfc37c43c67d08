// Untrusted JSON as a tree of bounded depth. The parser itself takes any depth, but trees are
// copied, compared and printed recursively, which overflows the stack.

#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace dsv4 {

inline constexpr int kMaxJsonDepth = 64;

// kBadInput with `what` for text that is no JSON, holds a NUL byte (the parser would take it for
// the end of the text), is nested deeper than kMaxJsonDepth levels or has more than `max_keys`
// keys.
nlohmann::json parse_shallow_json(std::string_view text, const std::string& what,
                                  int64_t max_keys = std::numeric_limits<int64_t>::max());

}  // namespace dsv4
