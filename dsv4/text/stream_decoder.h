// Decodes token ids, one at a time, to text that is always valid UTF-8.
//
// A character may span several tokens, so bytes that could still become one are held back (at most
// three). Other invalid bytes are replaced by U+FFFD as in utf8_lossy(): everything that push() and
// finish() return, joined, equals utf8_lossy(tokenizer.decode(ids, skip_special)).

#pragma once

#include <cstdint>
#include <string>

#include "dsv4/text/tokenizer.h"

namespace dsv4 {

class StreamDecoder {
 public:
  // The tokenizer must outlive the decoder. skip_special: special tokens are no text.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  std::string push(int32_t id);
  // The bytes held back, as U+FFFD or nothing; the decoder can then start a new text.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string pending_;  // an incomplete sequence
};

}  // namespace dsv4
