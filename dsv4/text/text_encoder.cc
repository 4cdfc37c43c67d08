#include "dsv4/text/text_encoder.h"

#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/text/utf8.h"

namespace dsv4 {

TextEncoder TextEncoder::load(const std::string& path) {
  return TextEncoder(parse_tokenizer_json(read_text_file(path), path));
}

TextEncoder::TextEncoder(TokenizerFile file)
    : byte_ids_(file.byte_ids),
      pre_tokenizer_(file.patterns),
      bpe_(std::move(file.merges), file.byte_ids) {
  if (!file.ignore_merges) return;
  for (const int32_t id : file.vocab_ids)
    whole_pieces_.emplace(std::move(file.tokens[static_cast<size_t>(id)]), id);
}

void TextEncoder::encode(std::string_view text, std::vector<int32_t>& ids) const {
  DSV4_CHECK(text.size() < size_t{1} << 31, "{} bytes of text in one call", text.size());
  Regex::Scratch regex;
  Bpe::Scratch merges;
  std::vector<std::string_view> pieces;
  while (!text.empty()) {
    const size_t valid = valid_utf8_prefix(text);
    pieces.clear();
    pre_tokenizer_.split(text.substr(0, valid), regex, pieces);
    for (const std::string_view piece : pieces) {
      const auto whole =
          whole_pieces_.empty() ? whole_pieces_.end() : whole_pieces_.find(std::string(piece));
      if (whole != whole_pieces_.end()) {
        ids.push_back(whole->second);
      } else {
        bpe_.encode(piece, merges, ids);
      }
    }
    text.remove_prefix(valid);
    if (text.empty()) break;
    ids.push_back(byte_ids_[static_cast<uint8_t>(text[0])]);
    text.remove_prefix(1);
  }
}

}  // namespace dsv4
