// Speed of the test tokenizer, in bytes of text per second. Its vocabulary is small, so each piece
// needs more merge lookups, of which fewer succeed, than with the official one.

#include <benchmark/benchmark.h>

#include "dsv4/text/tokenizer.h"
#include "tests/tokenizer/tokenizer_data.h"

namespace dsv4 {
namespace {

constexpr size_t kBytes = 1 << 20;

std::string repeat(const std::string& unit) {
  std::string text;
  while (text.size() < kBytes) text += unit;
  return text;
}

// The golden strings, joined, so that no line resembles the next.
std::string mixed_text() {
  std::string text;
  for (const auto& golden : test::goldens().at("cases"))
    text += golden.at(0).get<std::string>() + "\n";
  return text;
}

void encode(benchmark::State& state, const std::string& text) {
  const Tokenizer& tokenizer = test::golden_tokenizer();
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer.encode(text));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}

void decode(benchmark::State& state) {
  const std::string text = repeat("The router of the model sends 12 tokens to größer 東京.\n");
  const auto ids = test::golden_tokenizer().encode(text);
  for (auto _ : state) benchmark::DoNotOptimize(test::golden_tokenizer().decode(ids));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(text.size()));
}

void load(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::load(test::kTokenizerPath));
}

BENCHMARK_CAPTURE(encode, prompt,
                  "<｜User｜>How large is the cache of the model?<｜Assistant｜></think>");
BENCHMARK_CAPTURE(encode, english,
                  repeat("The router of the model sends all tokens to the right expert.\n"));
BENCHMARK_CAPTURE(encode, chinese, repeat("模型的路由器把所有的词元都送给合适的专家。\n"));
BENCHMARK_CAPTURE(encode, code, repeat("    for (int i = 0; i < 128; ++i) sum += x[i] * y[i];\n"));
BENCHMARK_CAPTURE(encode, mixed, mixed_text());
BENCHMARK_CAPTURE(encode, one_long_word, std::string(kBytes, 'a'));
BENCHMARK(decode);
BENCHMARK(load);

}  // namespace
}  // namespace dsv4
