#include "apps/synthetic_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "dsv4/base/error.h"

namespace dsv4::apps {
namespace {

using Sorted = nlohmann::json;  // objects are maps: the vocabulary is looked up

// Words are the tokens that are lower-case letters alone.
std::vector<std::string> words_of(const Sorted& vocab) {
  std::vector<std::string> words;
  for (const auto& [text, id] : vocab.items())
    if (std::ranges::all_of(text, [](char c) { return 'a' <= c && c <= 'z'; }))
      words.push_back(text);
  return words;
}

// Adds tokens that join two words, and their merges, after all others, until there are `count`.
void add_pairs(Sorted& vocab, Sorted& merges, int64_t count) {
  const std::vector<std::string> words = words_of(vocab);
  auto next = static_cast<int64_t>(vocab.size());
  for (const std::string& first : words) {
    for (const std::string& second : words) {
      if (next == count) return;
      const std::string both = first + second;
      if (vocab.contains(both)) continue;
      vocab[both] = next++;
      merges.push_back(Sorted::array({first, second}));
    }
  }
  DSV4_CHECK(next == count, "{} tokens of {} words, want {}", next, words.size(), count);
}

}  // namespace

std::string widened_tokenizer(const std::string& json, int64_t vocab) {
  Sorted tokenizer = Sorted::parse(json);
  Sorted &tokens = tokenizer.at("model").at("vocab"), &added = tokenizer.at("added_tokens");
  int64_t moved = 0;  // that are not in the vocabulary itself
  for (const Sorted& token : added)
    moved += tokens.contains(token.at("content").get<std::string>()) ? 0 : 1;
  add_pairs(tokens, tokenizer.at("model").at("merges"), vocab - moved);
  int64_t next = vocab - moved;
  for (Sorted& token : added)
    if (!tokens.contains(token.at("content").get<std::string>())) token["id"] = next++;
  return tokenizer.dump();
}

}  // namespace dsv4::apps
