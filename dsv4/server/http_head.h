// A strict check of the head of an HTTP/1 request, before a parser reads it
// (docs/spec/serving.md 7.2). It refuses what two parsers may read differently, which is how
// requests are smuggled past a proxy: two lengths, a length and an encoding, folded lines, a bare
// LF, a space before a colon.

#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace dsv4 {

struct HeadLimits {
  size_t request_line = 8 << 10, header_line = 8 << 10, header_count = 100, total = 32 << 10;
};

struct HeadError {
  int status;
  std::string message;
};

// A request target: a path with its query, or "http://authority/path", as clients of a proxy send.
struct RequestTarget {
  std::string_view authority;  // empty: only a path was given
  std::string_view path;       // begins with '/'
};
std::optional<RequestTarget> split_target(std::string_view target);

// The bytes of the head with its blank line; 0 where it is not complete. `bytes` starts with it.
size_t head_size(std::string_view bytes);

// Error of a head that is not complete yet and that no more bytes could make acceptable.
std::optional<HeadError> check_partial_head(std::string_view bytes, const HeadLimits& limits);

// Error of a whole head, its blank line included.
std::optional<HeadError> check_head(std::string_view head, const HeadLimits& limits);

}  // namespace dsv4
