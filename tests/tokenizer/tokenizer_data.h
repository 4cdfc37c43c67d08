// Code that the tokenizer tests share: the golden files, and small generated tokenizers.

#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dsv4/base/mapped_file.h"
#include "dsv4/text/byte_alphabet.h"
#include "dsv4/text/pre_tokenizer.h"
#include "dsv4/text/tokenizer.h"
#include "dsv4/text/tokenizer_json.h"

namespace dsv4::test {

inline constexpr const char* kTokenizerPath = "tests/tokenizer/tokenizer.json";

inline const Tokenizer& golden_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(kTokenizerPath);
  return tokenizer;
}

inline const nlohmann::json& goldens() {
  static const auto json = nlohmann::json::parse(read_text_file("tests/tokenizer/goldens.json"));
  return json;
}

// Size in bytes of each piece of `text` by the golden tokenizer's patterns, ignoring added tokens.
inline std::vector<int32_t> piece_sizes(std::string_view text) {
  static const PreTokenizer pre_tokenizer(
      parse_tokenizer_json(read_text_file(kTokenizerPath), kTokenizerPath).patterns);
  Regex::Scratch scratch;
  std::vector<std::string_view> pieces;
  pre_tokenizer.split(text, scratch, pieces);
  std::vector<int32_t> sizes;
  for (const std::string_view piece : pieces) sizes.push_back(static_cast<int32_t>(piece.size()));
  return sizes;
}

// A tokenizer.json of the 256 byte tokens (ids 0..255, by the code points of the byte alphabet),
// then `tokens`; split only at white space.
inline nlohmann::json tiny_tokenizer_json(const std::vector<std::string>& tokens = {},
                                          const nlohmann::json& merges = nlohmann::json::array()) {
  std::map<std::string, int> vocab;
  for (int byte = 0; byte < 256; ++byte) {
    vocab[token_text_of_bytes(std::string(1, static_cast<char>(byte)))] = 0;
  }
  int next = 0;
  for (auto& [text, id] : vocab) id = next++;
  for (const std::string& text : tokens) vocab[text] = next++;
  return {{"added_tokens", nlohmann::json::array()},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"pre_tokenizer",
           {{"type", "Sequence"},
            {"pretokenizers",
             {{{"type", "Split"}, {"pattern", {{"Regex", "\\s+"}}}, {"behavior", "Isolated"}},
              {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}}}};
}

inline Tokenizer parse_tokenizer(const nlohmann::json& json) {
  return Tokenizer::parse(json.dump(), "test");
}

}  // namespace dsv4::test
