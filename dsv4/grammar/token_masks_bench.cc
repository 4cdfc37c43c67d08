// Masks over a vocabulary of 129,280 random tokens, the size of the released models': the first
// mask of a state, one that is kept, and compiling a schema (docs/spec/serving.md 3.4).

#include <benchmark/benchmark.h>

#include "dsv4/base/rng.h"
#include "dsv4/grammar/schema_grammar.h"
#include "dsv4/grammar/token_masks.h"
#include "tests/tokenizer/tokenizer_data.h"

namespace dsv4 {
namespace {

constexpr int32_t kVocabulary = 129'280;

// Words of letters with a space before half of them, and pieces of JSON.
std::shared_ptr<const TokenTree> large_tree() {
  static const auto tree = [] {
    auto json = test::tiny_tokenizer_json();
    auto& vocab = json["model"]["vocab"];
    Rng rng(1);
    const std::string_view punctuation = "\"{}[]:,.0123456789-_ \n";
    while (static_cast<int32_t>(vocab.size()) < kVocabulary) {
      std::string word = rng.below(2) ? " " : "";
      for (int64_t i = 1 + rng.below(9); i > 0; --i) {
        const bool letter = rng.below(20) > 0;
        word += letter ? static_cast<char>('a' + rng.below(26))
                       : punctuation[static_cast<size_t>(
                             rng.below(static_cast<int64_t>(punctuation.size())))];
      }
      const std::string text = token_text_of_bytes(word);
      if (!vocab.contains(text)) vocab[text] = vocab.size();
    }
    const Tokenizer tokenizer = Tokenizer::parse(json.dump(), "bench");
    return std::make_shared<const TokenTree>(tokenizer, MarkerIds(tokenizer),
                                             std::vector<int32_t>{}, kVocabulary);
  }();
  return tree;
}

JsonValue schema() {
  return parse_json(R"({"type": "object", "required": ["name", "tags"], "properties": {
      "name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
      "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}},
      "address": {"type": "object", "properties": {"street": {"type": "string"},
      "city": {"type": "string"}}}}})",
                    "bench");
}

constexpr std::string_view kPrefix = "{\"name\": \"Ada";  // inside a string: most tokens fit

void first_mask(benchmark::State& state) {
  const JsonValue wanted = schema();
  std::vector<uint32_t> mask(large_tree()->words());
  for (auto _ : state) {
    state.PauseTiming();
    TokenMasks masks(json_schema_grammar(wanted, JsonSpaces::kSome, "bench"), large_tree());
    const auto at = masks.advance_bytes(masks.start(), kPrefix);
    state.ResumeTiming();
    masks.mask(at, mask);
  }
}

void kept_mask(benchmark::State& state) {
  TokenMasks masks(json_schema_grammar(schema(), JsonSpaces::kSome, "bench"), large_tree());
  const auto at = masks.advance_bytes(masks.start(), kPrefix);
  std::vector<uint32_t> mask(large_tree()->words());
  for (auto _ : state) masks.mask(at, mask);
}

void advance(benchmark::State& state) {
  TokenMasks masks(json_schema_grammar(schema(), JsonSpaces::kSome, "bench"), large_tree());
  const auto at = masks.advance_bytes(masks.start(), kPrefix);
  for (auto _ : state) benchmark::DoNotOptimize(masks.advance_bytes(at, " Lovelace"));
}

void compile(benchmark::State& state) {
  const JsonValue wanted = schema();
  for (auto _ : state)
    benchmark::DoNotOptimize(json_schema_grammar(wanted, JsonSpaces::kSome, "bench"));
}

BENCHMARK(first_mask)->Name("grammar/first_mask")->Unit(benchmark::kMicrosecond);
BENCHMARK(kept_mask)->Name("grammar/kept_mask")->Unit(benchmark::kMicrosecond);
BENCHMARK(advance)->Name("grammar/advance")->Unit(benchmark::kMicrosecond);
BENCHMARK(compile)->Name("grammar/compile")->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace dsv4
