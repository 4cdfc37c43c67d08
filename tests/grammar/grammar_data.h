// What the tests of grammars share: the bundled model's vocabulary, whole texts, random outputs
// under masks.

#pragma once

#include <gtest/gtest.h>

#include <ctime>

#include "dsv4/base/rng.h"
#include "dsv4/chat/request_error.h"
#include "dsv4/grammar/schema_grammar.h"
#include "dsv4/grammar/token_masks.h"

namespace dsv4::test {

inline const Tokenizer& demo_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load("models/demo/tokenizer.json");
  return tokenizer;
}

inline const MarkerIds& demo_markers() {
  static const MarkerIds markers(demo_tokenizer());
  return markers;
}

inline std::shared_ptr<const TokenTree> demo_tree() {
  static const auto tree = std::make_shared<const TokenTree>(
      demo_tokenizer(), demo_markers(), std::vector<int32_t>{demo_markers().require(Marker::kEos)},
      demo_tokenizer().vocab_size());
  return tree;
}

// CPU time of the calling thread; with a sanitizer a tenth of it, so that bounds hold there too.
inline double cpu_seconds() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr double kScale = 0.1;
#else
  constexpr double kScale = 1;
#endif
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return kScale * (static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec));
}

inline bool matches(TokenMasks& masks, std::string_view text) {
  return masks.accepts(masks.advance_bytes(masks.start(), text));
}

inline std::vector<int32_t> allowed_tokens(std::span<const uint32_t> mask) {
  std::vector<int32_t> tokens;
  for (size_t word = 0; word < mask.size(); ++word) {
    for (int bit = 0; bit < 32; ++bit) {
      if (mask[word] >> bit & 1) tokens.push_back(static_cast<int32_t>(word * 32) + bit);
    }
  }
  return tokens;
}

// Tokens drawn among the allowed ones until EOS is; nothing where the text gets too long. Short
// tokens and EOS are preferred, so that most texts end.
inline std::optional<std::vector<int32_t>> random_output(TokenMasks& masks, Rng& rng,
                                                         size_t max_tokens = 400) {
  const int32_t eos = demo_markers().require(Marker::kEos);
  const int32_t dsml = demo_markers().require(Marker::kDsml);
  std::vector<uint32_t> mask(demo_tree()->words());
  std::vector<int32_t> out;
  TokenMasks::State state = masks.start();
  while (out.size() < max_tokens) {
    masks.mask(state, mask);
    const std::vector<int32_t> allowed = allowed_tokens(mask);
    int32_t token = allowed[static_cast<size_t>(rng.below(static_cast<int64_t>(allowed.size())))];
    if (masks.accepts(state) && rng.below(4) == 0) token = eos;
    // Closing characters often, or lists and strings would never end.
    for (const int32_t candidate : allowed) {
      const std::string_view bytes = demo_tree()->bytes(candidate);
      const bool closes = bytes == "\"" || bytes == "]" || bytes == "}" || bytes == "</" ||
                          bytes == "<" || bytes == "/" || candidate == dsml;
      if (closes && rng.below(out.size() > 100 ? 2 : 6) == 0) token = candidate;
    }
    if (token == eos) return out;
    state = masks.advance(state, token);
    if (state == TokenMasks::kDead) {
      ADD_FAILURE() << "a token of the mask leads nowhere: " << token;
      return std::nullopt;
    }
    out.push_back(token);
  }
  return std::nullopt;
}

}  // namespace dsv4::test
