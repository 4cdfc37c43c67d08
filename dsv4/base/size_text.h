// Sizes of memory as text, in both directions. Units are powers of 1024.
//
//   size_text(19293798)           "18.4 MiB"
//   size_text(14355928186, 2)     "13.37 GiB"
//   parse_size("23.5G")           25232932864
//   parse_size("23.5GiB")         25232932864
//   parse_size("23.5GB")          nothing

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dsv4 {

// The largest unit of which there is one, up to GiB; less than 1024 are "584 B".
// digits: after the point; two where sizes are compared that differ by little
std::string size_text(int64_t bytes, int digits = 1);

// A number above 0 with K, M, G or T, in either case, and "iB" or nothing behind it. Nothing for
// other texts, and for 2^60 bytes or more.
std::optional<int64_t> parse_size(std::string_view text);

}  // namespace dsv4
