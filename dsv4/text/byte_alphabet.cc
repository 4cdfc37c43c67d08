#include "dsv4/text/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "dsv4/text/utf8.h"

namespace dsv4 {
namespace {

constexpr int kAlphabetEnd = 0x100 + 68;

constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

struct Alphabet {
  std::array<char32_t, 256> code_point{};
  std::array<int16_t, kAlphabetEnd> byte{};  // -1: not in the alphabet
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.byte.fill(-1);
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const int code_point = stands_for_itself(byte) ? byte : next++;
    alphabet.code_point[byte] = static_cast<char32_t>(code_point);
    alphabet.byte[code_point] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();
static_assert(kAlphabet.code_point[' '] == 0x120 && kAlphabet.code_point['\n'] == 0x10a);
static_assert(kAlphabet.byte[kAlphabetEnd - 1] == 0xad);

}  // namespace

std::optional<std::string> bytes_of_token_text(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const auto size = static_cast<size_t>(next_utf8(text).size);
    const char32_t code_point = decode_utf8(text.substr(0, size));
    if (code_point >= kAlphabetEnd || kAlphabet.byte[code_point] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kAlphabet.byte[code_point]));
    text.remove_prefix(size);
  }
  return bytes;
}

std::string token_text_of_bytes(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) append_utf8(text, kAlphabet.code_point[static_cast<uint8_t>(byte)]);
  return text;
}

}  // namespace dsv4
