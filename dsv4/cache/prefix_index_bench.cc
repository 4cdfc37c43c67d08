// Lookups of a prompt of 100,000 tokens in steps of 128, and the keys of its units
// (docs/spec/serving.md 5.3).

#include <benchmark/benchmark.h>

#include "dsv4/base/rng.h"
#include "dsv4/cache/prefix_index.h"
#include "dsv4/cache/prefix_key.h"

namespace dsv4 {
namespace {

constexpr int64_t kStep = 128, kTokens = 100'000;

std::vector<int32_t> prompt(uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> ids(static_cast<size_t>(kTokens));
  for (int32_t& id : ids) id = static_cast<int32_t>(rng.below(129'280));
  return ids;
}

// Beside 31 others of the same length, with checkpoints every 2,048 tokens.
void find_long_prompt(benchmark::State& state) {
  PrefixIndex index(kStep);
  int checkpoint = 0;
  for (uint64_t text = 0; text < 32; ++text) {
    const std::vector<int32_t> ids = prompt(text);
    for (size_t end = 2048; end < ids.size(); end += 2048)
      index.insert("", std::span(ids).first(end), checkpoint++);
  }
  const std::vector<int32_t> ids = prompt(7);
  for (auto _ : state) benchmark::DoNotOptimize(index.find("", ids));
}
BENCHMARK(find_long_prompt)
    ->Name("prefix_index/find 100,000 tokens")
    ->Unit(benchmark::kMicrosecond);

void keys_of_long_prompt(benchmark::State& state) {
  const std::vector<int32_t> ids = prompt(7);
  for (auto _ : state) {
    PrefixChain chain(Digest{}, "", kStep);
    chain.extend(ids);
    benchmark::DoNotOptimize(chain.keys().size());
  }
}
BENCHMARK(keys_of_long_prompt)
    ->Name("prefix_key/keys of 100,000 tokens")
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace dsv4
