// The first byte selects the meaning of the rest: a tokenizer.json, text for a small tokenizer, or
// a pattern.
//
// For any input the result is an Error or a success in which no text is lost.

#include <cstdint>
#include <string_view>

#include "dsv4/base/error.h"
#include "dsv4/text/pre_tokenizer.h"
#include "dsv4/text/stream_decoder.h"
#include "dsv4/text/tokenizer.h"
#include "dsv4/text/utf8.h"
#include "tests/tokenizer/tokenizer_data.h"

namespace dsv4 {
namespace {

void must(bool condition) {
  if (!condition) __builtin_trap();
}

void round_trip(const Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.encode(text);
  must(tokenizer.decode(ids) == text);
  StreamDecoder decoder(tokenizer);
  std::string streamed;
  for (const int32_t id : ids) streamed += decoder.push(id);
  must(streamed + decoder.finish() == utf8_lossy(text));
}

void parse_file(std::string_view json) {
  try {
    round_trip(Tokenizer::parse(json, "fuzz"), "The 12 größer<s>\r\n  漢\xff");
  } catch (const Error&) {
  }
}

void encode_text(std::string_view text) {
  static const Tokenizer tokenizer = [] {
    auto json = test::tiny_tokenizer_json({"th", "the", "ĠĠ", "æ¼¢"}, {"t h", "th e", "Ġ Ġ"});
    json["added_tokens"] = {{{"id", 260}, {"content", "<s>"}, {"special", true}},
                            {{"id", 261}, {"content", "<s>>"}},
                            {{"id", 262}, {"content", "｜A｜"}, {"normalized", false}}};
    json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] =
        "\\p{N}{1,3}|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|"
        "\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
    return test::parse_tokenizer(json);
  }();
  round_trip(tokenizer, text);
}

void split_by_pattern(std::string_view pattern) {
  if (valid_utf8_prefix(pattern) != pattern.size()) return;
  constexpr std::string_view kText = "The model's 1234 größer漢字\r\n\n   x  !!😀\u180e\u3000";
  try {
    Regex::Scratch scratch;
    std::vector<std::string_view> pieces;
    PreTokenizer({std::string(pattern)}).split(kText, scratch, pieces);
    std::string joined;
    for (const std::string_view piece : pieces) joined += piece;
    must(joined == kText);
  } catch (const Error&) {
  }
}

}  // namespace
}  // namespace dsv4

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      dsv4::parse_file(rest);
      break;
    case 1:
      dsv4::encode_text(rest);
      break;
    default:
      dsv4::split_by_pattern(rest);
  }
  return 0;
}
