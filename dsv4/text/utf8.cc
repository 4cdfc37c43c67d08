#include "dsv4/text/utf8.h"

#include <cstdint>
#include <cstring>

namespace dsv4 {
namespace {

// What a lead byte implies: the length, and the range of the second byte (which distinguishes
// overlong forms, surrogates and code points above U+10FFFF from valid sequences).
struct Lead {
  int size;
  uint8_t low, high;
};

constexpr Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xc2) return {0, 0, 0};
  if (byte < 0xe0) return {2, 0x80, 0xbf};
  if (byte == 0xe0) return {3, 0xa0, 0xbf};
  if (byte == 0xed) return {3, 0x80, 0x9f};
  if (byte < 0xf0) return {3, 0x80, 0xbf};
  if (byte == 0xf0) return {4, 0x90, 0xbf};
  if (byte < 0xf4) return {4, 0x80, 0xbf};
  if (byte == 0xf4) return {4, 0x80, 0x8f};
  return {0, 0, 0};
}

}  // namespace

Utf8Unit next_utf8(std::string_view text) {
  const Lead lead = lead_of(static_cast<uint8_t>(text[0]));
  if (lead.size == 0) return {Utf8Kind::kInvalid, 1};
  for (int i = 1; i < lead.size; ++i) {
    if (static_cast<size_t>(i) == text.size()) return {Utf8Kind::kIncomplete, i};
    const auto byte = static_cast<uint8_t>(text[i]);
    const uint8_t low = i == 1 ? lead.low : 0x80, high = i == 1 ? lead.high : 0xbf;
    if (byte < low || byte > high) return {Utf8Kind::kInvalid, i};
  }
  return {Utf8Kind::kValid, lead.size};
}

size_t valid_utf8_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t word = 0;
    if (text.size() - at >= sizeof(word)) {
      std::memcpy(&word, text.data() + at, sizeof(word));
      if ((word & 0x8080808080808080ull) == 0) {  // eight ASCII bytes
        at += sizeof(word);
        continue;
      }
    }
    const Utf8Unit unit = next_utf8(text.substr(at));
    if (unit.kind != Utf8Kind::kValid) break;
    at += static_cast<size_t>(unit.size);
  }
  return at;
}

void append_utf8(std::string& out, char32_t code_point) {
  const auto tail = [&](int shift) {
    out.push_back(static_cast<char>(0x80 | ((code_point >> shift) & 0x3f)));
  };
  if (code_point < 0x80) {
    out.push_back(static_cast<char>(code_point));
  } else if (code_point < 0x800) {
    out.push_back(static_cast<char>(0xc0 | (code_point >> 6)));
    tail(0);
  } else if (code_point < 0x10000) {
    out.push_back(static_cast<char>(0xe0 | (code_point >> 12)));
    tail(6);
    tail(0);
  } else {
    out.push_back(static_cast<char>(0xf0 | (code_point >> 18)));
    tail(12);
    tail(6);
    tail(0);
  }
}

char32_t decode_utf8(std::string_view unit) {
  const auto lead = static_cast<uint8_t>(unit[0]);
  if (unit.size() == 1) return lead;
  char32_t code_point = lead & (0x7f >> unit.size());
  for (const char byte : unit.substr(1)) {
    code_point = (code_point << 6) | (static_cast<uint8_t>(byte) & 0x3f);
  }
  return code_point;
}

std::string utf8_lossy(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    const size_t valid = valid_utf8_prefix(bytes);
    out.append(bytes.substr(0, valid));
    bytes.remove_prefix(valid);
    if (bytes.empty()) break;
    out.append(kReplacementCharacter);
    bytes.remove_prefix(static_cast<size_t>(next_utf8(bytes).size));
  }
  return out;
}

}  // namespace dsv4
