// A run of a grammar that the fuzzer's bytes steer: what the fuzzers of grammars share.

#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "dsv4/grammar/token_masks.h"
#include "fuzz/fuzz.h"
#include "tests/chat/chat_data.h"

namespace dsv4::fuzz {

// The 256 bytes and every marker.
inline std::shared_ptr<const TokenTree> byte_tree() {
  static const auto tree = std::make_shared<const TokenTree>(
      test::marker_tokenizer(), test::marker_ids(),
      std::vector<int32_t>{test::marker_ids().require(Marker::kEos)},
      test::marker_tokenizer().vocab_size());
  return tree;
}

// Up to `kSteps` tokens that the masks allow, chosen by `choices`; the text where the grammar may
// end after them. A token passes exactly where its bit is set.
inline std::optional<std::string> steered_text(TokenMasks& masks, std::string_view choices) {
  constexpr size_t kSteps = 64;
  const auto tree = byte_tree();
  const int32_t eos = tree->eos().front();
  std::vector<uint32_t> mask(tree->words());
  std::string text;
  TokenMasks::State state = masks.start();
  for (size_t i = 0; i < kSteps; ++i) {
    masks.mask(state, mask);
    std::vector<int32_t> allowed;
    for (int32_t token = 0; token < tree->vocab_size(); ++token) {
      const bool bit = (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
      if (token == eos) {
        require(bit == masks.accepts(state));
      } else if (bit) {
        allowed.push_back(token);
      }
    }
    const uint8_t choice = i < choices.size() ? static_cast<uint8_t>(choices[i]) : 255;
    // Where nothing steers, the text ends as soon as it may.
    if (allowed.empty() || (choice == 255 && masks.accepts(state))) break;
    const int32_t token = allowed[choice % allowed.size()];
    const bool forbidden = std::find(allowed.begin(), allowed.end(), choice) == allowed.end();
    if (forbidden) require(masks.advance(state, choice) == TokenMasks::kDead);
    state = masks.advance(state, token);
    require(state != TokenMasks::kDead);
    text += tree->bytes(token);
  }
  if (!masks.accepts(state)) return std::nullopt;
  return text;
}

}  // namespace dsv4::fuzz
