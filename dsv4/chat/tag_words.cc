#include "dsv4/chat/tag_words.h"

#include <algorithm>
#include <array>

namespace dsv4 {
namespace {

constexpr std::array<std::string_view, 6> kBlockWords = {
    "tool_calls", "toolcalls", "tool_call", "tools", "tool", "function_calls"};
constexpr std::string_view kSpacedBlockWord = " calls";  // V4.1

size_t count_spaces(std::string_view text) {
  size_t n = 0;
  while (n < text.size() && is_tag_space(text[n])) ++n;
  return n;
}

std::string_view skip_spaces(std::string_view text) {
  return text.substr(count_spaces(text));
}

}  // namespace

bool is_tag_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

std::string_view trim_tag(std::string_view word) {
  word = skip_spaces(word);
  while (!word.empty() && is_tag_space(word.back())) word.remove_suffix(1);
  return word;
}

bool is_block_word(std::string_view word) {
  if (word == kSpacedBlockWord) return true;
  const std::string_view bare = skip_spaces(word);
  return std::find(kBlockWords.begin(), kBlockWords.end(), bare) != kBlockWords.end();
}

bool may_become_block_word(std::string_view word) {
  if (kSpacedBlockWord.starts_with(word)) return true;
  const std::string_view bare = skip_spaces(word);
  return std::any_of(kBlockWords.begin(), kBlockWords.end(),
                     [&](std::string_view known) { return known.starts_with(bare); });
}

CallTag match_call_tag(std::string_view word) {
  constexpr std::string_view kInvoke = "invoke", kName = "name";
  std::string_view rest = skip_spaces(word);
  if (kInvoke.starts_with(rest)) return CallTag::kBegun;
  if (!rest.starts_with(kInvoke)) return CallTag::kNo;
  rest.remove_prefix(kInvoke.size());
  const size_t spaces = count_spaces(rest);
  rest.remove_prefix(spaces);
  if (spaces == 0) return CallTag::kNo;
  if (rest != kName && kName.starts_with(rest)) return CallTag::kBegun;
  if (!rest.starts_with(kName)) return CallTag::kNo;
  rest = skip_spaces(rest.substr(kName.size()));
  if (rest.empty()) return CallTag::kNamed;
  if (rest[0] != '=') return CallTag::kNo;
  rest = skip_spaces(rest.substr(1));
  if (rest.empty()) return CallTag::kNamed;
  return rest == "\"" ? CallTag::kComplete : CallTag::kNo;
}

ParameterAttributes parse_attributes(std::string_view text) {
  ParameterAttributes attributes;
  for (text = skip_spaces(text); !text.empty(); text = skip_spaces(text)) {
    size_t end = 0;
    while (end < text.size() && text[end] != '=' && !is_tag_space(text[end])) ++end;
    const std::string_view key = text.substr(0, end);
    text = skip_spaces(text.substr(end));
    if (text.empty() || text[0] != '=') continue;  // a key without a value
    text = skip_spaces(text.substr(1));
    std::string_view value;
    if (!text.empty() && (text[0] == '"' || text[0] == '\'')) {
      const size_t close = std::min(text.find(text[0], 1), text.size());
      value = text.substr(1, close - 1);
      text.remove_prefix(std::min(close + 1, text.size()));
    } else {
      end = 0;
      while (end < text.size() && !is_tag_space(text[end])) ++end;
      value = text.substr(0, end);
      text.remove_prefix(end);
    }
    if (key == "name") attributes.name = value;
    if (key == "string") attributes.is_string = value == "true";
  }
  return attributes;
}

}  // namespace dsv4
