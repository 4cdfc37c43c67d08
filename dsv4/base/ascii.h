// ASCII text, independent of the locale: hexadecimal digits, letters and spaces.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dsv4 {

// Two digits in lower case for each byte.
std::string hex_digits(std::span<const uint8_t> bytes);

// Whether all of it is hexadecimal digits, as hashes and ids are written.
inline bool is_lower_hex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == text.npos;
}

// ASCII letters only.
std::string lower_case(std::string_view text);

// Without spaces, tabs and line ends at both ends.
std::string_view trimmed(std::string_view text);

}  // namespace dsv4
