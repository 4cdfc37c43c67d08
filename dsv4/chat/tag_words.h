// Words of the tags that structure tool calls, as the models write them (docs/spec/serving.md 2.2).

#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dsv4 {

// A longer word is none of these.
inline constexpr size_t kMaxTagWord = 256;

bool is_tag_space(char c);
std::string_view trim_tag(std::string_view word);

// The word of a tag that opens or closes the block of calls, and its possible beginnings.
bool is_block_word(std::string_view word);
bool may_become_block_word(std::string_view word);

// How far a word goes along: spaces, `invoke`, spaces, `name`, spaces, `=`, spaces, `"`.
enum class CallTag { kNo, kBegun, kNamed, kComplete };
CallTag match_call_tag(std::string_view word);

// Attributes of a parameter: values with or without quotes, in any order, unknown ones ignored.
struct ParameterAttributes {
  std::string name;
  bool is_string = false;
};
ParameterAttributes parse_attributes(std::string_view text);

}  // namespace dsv4
