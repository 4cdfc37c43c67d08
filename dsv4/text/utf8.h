// UTF-8 by the Unicode standard, table 3-7: no overlong forms, no surrogates, nothing above
// U+10FFFF.
//
// An invalid stretch is split into "maximal subparts" (Unicode 3.9, the W3C practice), which is
// what Python's errors="replace" and Rust's from_utf8_lossy do: each becomes one U+FFFD.

#pragma once

#include <string>
#include <string_view>

namespace dsv4 {

enum class Utf8Kind {
  kValid,       // one code point
  kInvalid,     // bytes that can never become valid, whatever follows
  kIncomplete,  // the text ends inside a sequence that is valid so far
};

struct Utf8Unit {
  Utf8Kind kind;
  int size;  // bytes, 1..4
};

// The unit that `text` (not empty) starts with.
Utf8Unit next_utf8(std::string_view text);

// Length in bytes of the longest valid UTF-8 prefix.
size_t valid_utf8_prefix(std::string_view text);

void append_utf8(std::string& out, char32_t code_point);

// The code point of a kValid unit.
char32_t decode_utf8(std::string_view unit);

inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";  // U+FFFD

// bytes.decode("utf-8", errors="replace")
std::string utf8_lossy(std::string_view bytes);

}  // namespace dsv4
