// An EBNF grammar from outside: up to 64 bytes that steer a text, a zero byte, the grammar. What it
// accepts is UTF-8.

#include "dsv4/grammar/ebnf_grammar.h"

#include "fuzz/grammar_run.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dsv4;
  const std::string_view input = fuzz::text(data, size);
  const size_t zero = input.find('\0');
  if (zero == input.npos) return 0;
  const std::string_view choices = input.substr(0, zero), grammar = input.substr(zero + 1);
  fuzz::allow_limits([&] {
    if (const auto text = fuzz::steered_text(ebnf_format_grammar(grammar, "grammar"), choices))
      fuzz::require(valid_utf8_prefix(*text) == text->size());
  });
  return 0;
}
