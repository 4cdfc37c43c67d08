#include "dsv4/text/text_encoder.h"

#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/text/utf8.h"

namespace dsv4 {
namespace {

// Longer pieces rarely repeat, and hashing them would cost more than it saves.
constexpr size_t kMaxCachedPiece = 64;

}  // namespace

TextEncoder TextEncoder::load(const std::string& path) {
  TokenizerFile file = parse_tokenizer_json(read_text_file(path), path);
  return TextEncoder(file);
}

TextEncoder::TextEncoder(TokenizerFile& file)
    : byte_ids_(file.byte_ids),
      pre_tokenizer_(file.patterns),
      bpe_(std::move(file.merges), file.byte_ids) {
  if (!file.ignore_merges) return;
  for (const int32_t id : file.vocab_ids)
    whole_pieces_.emplace(file.tokens[static_cast<size_t>(id)], id);
}

void TextEncoder::encode(std::string_view text, std::vector<int32_t>& ids) const {
  DSV4_CHECK(text.size() < size_t{1} << 31, "{} bytes of text in one call", text.size());
  Call(*this, text.size()).encode(text, ids);
}

void TextEncoder::Call::encode(std::string_view text, std::vector<int32_t>& ids) {
  while (!text.empty()) {
    const size_t valid = valid_utf8_prefix(text);
    pieces_.clear();
    encoder_.pre_tokenizer_.split(text.substr(0, valid), regex_, pieces_);
    for (const std::string_view piece : pieces_) encode_piece(piece, ids);
    text.remove_prefix(valid);
    if (text.empty()) break;
    ids.push_back(encoder_.byte_ids_[static_cast<uint8_t>(text[0])]);
    text.remove_prefix(1);
  }
}

void TextEncoder::Call::encode_piece(std::string_view piece, std::vector<int32_t>& ids) {
  const auto& whole_pieces = encoder_.whole_pieces_;
  if (const auto whole = whole_pieces.find(piece); whole != whole_pieces.end()) {
    ids.push_back(whole->second);
    return;
  }
  if (piece.size() > kMaxCachedPiece) return encoder_.bpe_.encode(piece, merges_, ids);
  const auto [seen, is_new] = seen_.try_emplace(piece);
  if (is_new) encoder_.bpe_.encode(piece, merges_, seen->second);
  ids.insert(ids.end(), seen->second.begin(), seen->second.end());
}

}  // namespace dsv4
