// A regular expression from outside: up to 64 bytes that steer a text, a zero byte, the pattern.
// What it accepts is UTF-8, and inside a JSON string it is JSON.

#include "dsv4/grammar/regex_grammar.h"
#include "dsv4/grammar/schema_grammar.h"
#include "fuzz/grammar_run.h"

namespace dsv4 {
namespace {

Automaton json_string_grammar(std::string_view pattern) {
  AutomatonBuilder builder;
  const RuleId rule = builder.declare();
  const NodeId open = builder.literal(builder.begin(rule), "\"");
  builder.end(
      builder.literal(add_regex(builder, open, pattern, RegexText::kInsideJsonString), "\""));
  return builder.finish();
}

}  // namespace
}  // namespace dsv4

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dsv4;
  const std::string_view input = fuzz::text(data, size);
  const size_t zero = input.find('\0');
  if (zero == input.npos) return 0;
  const std::string_view choices = input.substr(0, zero), pattern = input.substr(zero + 1);
  fuzz::allow_limits([&] {
    if (const auto text = fuzz::steered_text(regex_format_grammar(pattern, "pattern"), choices))
      fuzz::require(valid_utf8_prefix(*text) == text->size());
  });
  fuzz::allow_limits([&] {
    if (const auto text = fuzz::steered_text(json_string_grammar(pattern), choices)) {
      const auto value = try_parse_json(*text);
      fuzz::require(value.has_value() && value->is_string());
    }
  });
  return 0;
}
