// A run of a grammar that the fuzzer's bytes steer: what the fuzzers of grammars share.

#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dsv4/grammar/token_masks.h"
#include "fuzz/fuzz.h"
#include "tests/chat/chat_data.h"

namespace dsv4::fuzz {

// A grammar that is refused, or whose run reaches a limit.
template <class Run>
void allow_limits(const Run& run) {
  allow_bad_input(run, ErrorCode::kResource);
}

// The 256 bytes and every marker.
inline std::shared_ptr<const TokenTree> byte_tree() {
  static const auto tree = std::make_shared<const TokenTree>(
      test::marker_tokenizer(), test::marker_ids(),
      std::vector<int32_t>{test::marker_ids().require(Marker::kEos)},
      test::marker_tokenizer().vocab_size());
  return tree;
}

// The tokens whose bit is in the mask of `state`, without EOS.
inline std::vector<int32_t> allowed_tokens(TokenMasks& masks, TokenMasks::State state) {
  const auto tree = byte_tree();
  const int32_t eos = tree->eos().front();
  std::vector<uint32_t> mask(tree->words());
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
  return allowed;
}

// A text of up to `kSteps` tokens that the grammar allows, where it may end after them. A choice is
// the next byte, 0xfe DSML; where that is forbidden, a mask is computed, and the choice picks one
// of the allowed tokens. Masks are the costly part, so a run ends after `kMasks` of them. `plain`
// reads the same tokens and computes none: where both go does not depend on masks.
inline std::optional<std::string> steered_text(const Automaton& grammar, std::string_view choices) {
  constexpr size_t kSteps = 64, kMasks = 6;
  const auto tree = byte_tree();
  TokenMasks masks(grammar, tree), plain(grammar, tree);
  std::string text;
  TokenMasks::State state = masks.start(), at = plain.start();
  for (size_t i = 0, computed = 0; i < kSteps; ++i) {
    const bool steered = i < choices.size();
    if (!steered && masks.accepts(state)) break;
    const char choice = steered ? choices[i] : '\xff';
    int32_t token = choice == '\xfe' ? tree->dsml() : test::byte_token(choice);
    TokenMasks::State next = masks.advance(state, token);
    if (next == TokenMasks::kDead) {
      if (computed++ == kMasks) return std::nullopt;
      const std::vector<int32_t> allowed = allowed_tokens(masks, state);
      require(std::find(allowed.begin(), allowed.end(), token) == allowed.end());
      if (allowed.empty()) break;
      token = allowed[static_cast<uint8_t>(choice) % allowed.size()];
      next = masks.advance(state, token);
      require(next != TokenMasks::kDead);
    }
    state = next;
    at = plain.advance(at, token);
    require(at != TokenMasks::kDead && plain.accepts(at) == masks.accepts(state));
    text += tree->bytes(token);
  }
  if (!masks.accepts(state)) return std::nullopt;
  return text;
}

}  // namespace dsv4::fuzz
