// The byte alphabet of GPT-2, in which tokenizer.json writes the tokens of a byte-level BPE.
//
// Printable Latin-1 bytes (0x21-0x7E, 0xA1-0xAC, 0xAE-0xFF) stand for themselves as code points;
// the other 68 bytes, in order, are U+0100, U+0101, ... (so a space is U+0120 and a newline
// U+010A).

#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dsv4 {

// The bytes that a token's text stands for; nullopt if a character is outside the alphabet.
// `text` is valid UTF-8.
std::optional<std::string> bytes_of_token_text(std::string_view text);

// The inverse: how tokenizer.json spells these bytes.
std::string token_text_of_bytes(std::string_view bytes);

}  // namespace dsv4
