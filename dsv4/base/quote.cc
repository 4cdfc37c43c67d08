#include "dsv4/base/quote.h"

#include <array>
#include <cstdint>

namespace dsv4 {
namespace {

struct Character {
  size_t bytes = 0;  // 0: not valid UTF-8
  uint32_t code = 0;
};

Character character_at(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(text[i])); };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return {1, lead};
  const size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {};
  uint32_t code = lead & (0xffu >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0u) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3fu);
  }
  constexpr std::array<uint32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  return code < kLeast[bytes] || surrogate || code > 0x10ffff ? Character{}
                                                              : Character{bytes, code};
}

// C0, C1, line separators, and the overrides of direction.
bool is_control(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || (code >= 0x200e && code <= 0x200f) ||
         (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

}  // namespace

std::string quotable(std::string_view text) {
  std::string out(text.substr(0, kMaxQuote));
  for (char& c : out) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) c = '?';
  }
  return text.size() > kMaxQuote ? out + "..." : out;
}

std::string printable(std::string_view text, size_t max_bytes) {
  std::string out;
  while (!text.empty()) {
    const Character c = character_at(text);
    const bool shown = c.bytes > 0 && !is_control(c.code);
    if (out.size() + (shown ? c.bytes : 1) > max_bytes) return out + "...";
    shown ? out.append(text.substr(0, c.bytes)) : out.append("?");
    text.remove_prefix(c.bytes > 0 ? c.bytes : 1);
  }
  return out;
}

}  // namespace dsv4
