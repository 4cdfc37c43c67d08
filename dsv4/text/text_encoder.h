// Text to ids without the added vocabulary: `<think>` typed by a client stays seven characters.
//
//   text -> pieces (pre_tokenizer.h) -> byte-pair merges (bpe.h) -> ids
//
// For text in which no added token is spelled the ids are those of Tokenizer::encode(). Text need
// not be valid UTF-8: a byte that is in no valid sequence becomes the token of that byte.
// Constant after construction; encode() may be called from many threads.

#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dsv4/text/bpe.h"
#include "dsv4/text/pre_tokenizer.h"
#include "dsv4/text/tokenizer_json.h"

namespace dsv4 {

class TextEncoder {
 public:
  static TextEncoder load(const std::string& path);  // of tokenizer.json
  // Takes the merges out of `file` and leaves everything else.
  explicit TextEncoder(TokenizerFile& file);
  explicit TextEncoder(TokenizerFile&& file) : TextEncoder(file) {}

  // Appends the ids of `text` (shorter than 2^31 bytes).
  void encode(std::string_view text, std::vector<int32_t>& ids) const;

  // One encode() that goes over several texts: scratch memory, and the pieces that were seen.
  class Call {
   public:
    // text_bytes: of all texts, which bounds the steps of the pattern
    Call(const TextEncoder& encoder, size_t text_bytes) : encoder_(encoder), regex_(text_bytes) {}
    // Earlier texts of the call must still be there.
    void encode(std::string_view text, std::vector<int32_t>& ids);

   private:
    void encode_piece(std::string_view piece, std::vector<int32_t>& ids);

    const TextEncoder& encoder_;
    std::vector<std::string_view> pieces_;
    std::unordered_map<std::string_view, std::vector<int32_t>> seen_;
    Regex::Scratch regex_;
    Bpe::Scratch merges_;
  };

 private:
  std::array<int32_t, 256> byte_ids_;
  PreTokenizer pre_tokenizer_;
  Bpe bpe_;
  // With ignore_merges: pieces that are tokens, bytes -> id.
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> whole_pieces_;
};

}  // namespace dsv4
