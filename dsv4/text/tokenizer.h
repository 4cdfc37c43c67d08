// Tokenizer: text <-> ids by the rules of tokenizer.json (docs/spec/dsv4.md 11.1); the ids equal
// those of the `tokenizers` package with add_special_tokens=False.
//
//   text -> added tokens extracted -> pieces (pre_tokenizer.h) -> byte-pair merges (bpe.h) -> ids
//
// Text need not be valid UTF-8: a byte outside any valid sequence becomes the token of that byte
// and splits the text for the patterns, as an added token does. So decode(encode(x)) == x for any
// bytes. Constant after construction; every method may be called from many threads.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dsv4 {

class TextEncoder;

class Tokenizer {
 public:
  static Tokenizer load(const std::string& path);  // path of tokenizer.json
  // `what` names the input in errors.
  static Tokenizer parse(std::string_view json, std::string_view what);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Added tokens in `text`, special or not, become their ids.
  std::vector<int32_t> encode(std::string_view text) const;
  // Without the added vocabulary.
  const TextEncoder& text_encoder() const;
  // The bytes of the ids, joined; utf8_lossy() or StreamDecoder turn them into valid UTF-8.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // The bytes of one id; for an added token, its content.
  std::string_view token_bytes(int32_t id) const;
  // The id of the added token with exactly this content.
  std::optional<int32_t> id(std::string_view content) const;
  bool is_special(int32_t id) const;
  // Ids are 0 .. vocab_size() - 1; those outside are kInvalidArgument.
  int32_t vocab_size() const;

 private:
  struct Impl;
  class Encoding;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);

  std::unique_ptr<const Impl> impl_;
};

}  // namespace dsv4
