// Planning a step (docs/spec/serving.md 4): 256 sequences that decode, and the same with half of
// them computing prompts while others wait.

#include <benchmark/benchmark.h>

#include "dsv4/engine/scheduler.h"

namespace dsv4 {
namespace {

constexpr CacheGroup kGroups[] = {  // of Flash, with room for all
    {.tokens_per_entry = 1, .page_entries = 64, .num_pages = 4096, .keep_tokens = 128},
    {.tokens_per_entry = 4, .page_entries = 64, .num_pages = 1 << 20},
    {.tokens_per_entry = 128, .page_entries = 2, .num_pages = 1 << 20}};

void plan_step(benchmark::State& state) {
  const auto running = static_cast<size_t>(state.range(0)),
             prompts = static_cast<size_t>(state.range(1)),
             waiting = static_cast<size_t>(state.range(2));
  std::vector<ScheduledRequest> requests;
  for (size_t i = 0; i < running + waiting; ++i) {
    const auto tokens = static_cast<int64_t>(1000 + 37 * i);
    const bool decodes = i + prompts < running;
    requests.push_back({.tokens = tokens,
                        .cached = decodes ? tokens - 1 : 0,
                        .answer_left = 256,
                        .decoding = decodes});
  }
  const std::vector<int64_t> free_pages = {2000, 1 << 19, 1 << 19};
  for (auto _ : state) {
    const Schedule plan = schedule(
        {.requests = requests, .num_running = running, .groups = kGroups, .free_pages = free_pages},
        {.max_batch_tokens = 2048,
         .max_sequences = static_cast<int>(running + waiting),
         .chunk_step = 128});
    benchmark::DoNotOptimize(plan.chunks.data());
  }
}
BENCHMARK(plan_step)
    ->Name("scheduler/step (running, of them prompts, waiting)")
    ->Args({256, 0, 0})
    ->Args({256, 128, 0})
    ->Args({248, 0, 8})
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace dsv4
