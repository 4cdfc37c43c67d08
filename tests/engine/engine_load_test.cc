// Random load on engines with every tier: requests that share prefixes, of different salts and
// priorities, arrive, are cancelled and preempted; engines are restarted, lose their faster tiers,
// and have different limits. Every answer is the one that the request gets alone, the pages and the
// units stay consistent, and memory does not grow.
//
// DSV4_LOAD_SECONDS=3600 runs it for an hour, DSV4_LOAD_SEED=N with another load;
// tools/load_sanitized.sh does so under the sanitizers.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <set>

#include "dsv4/base/rng.h"
#include "tests/engine/stored_prefixes.h"
#include "tests/harness/temp_folder.h"

namespace dsv4 {
namespace {

using test::join;

#ifdef __has_feature
constexpr bool kThreadSanitizer = __has_feature(thread_sanitizer);
#else
constexpr bool kThreadSanitizer = false;  // the preset tsan uses clang
#endif

struct Asked {
  std::vector<int32_t> prompt;
  GenerateParams params;
};

// Compares tokens as they come, so that a cancelled request counts too.
struct Compared : TokenSink {
  void on_token(RequestId id, const Sampled& token) override {
    const std::vector<int32_t>& answer = *want.at(id);
    const size_t at = got[id]++;
    if (at >= answer.size() || answer[at] != token.id) ++wrong;
  }
  void on_finish(RequestId id, Finish why) override {
    if (why != Finish::kCancelled && got[id] != want.at(id)->size()) ++wrong;
    open.erase(id);
  }

  std::map<RequestId, const std::vector<int32_t>*> want;
  std::map<RequestId, size_t> got;
  std::set<RequestId> open;
  int wrong = 0;
};

double resident_mb() {
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return static_cast<double>(resident) * 4096 / 1e6;
}

class EngineLoad : public test::StoredPrefixes {
 protected:
  // One of a few dozen requests, whose answers alone are known after the first time.
  // Requests with a long answer outgrow what is set aside for them, so that some are preempted.
  Asked random_request(Rng& rng, int64_t long_answer) const {
    const int64_t family = rng.below(4), kind = rng.below(3) == 0 ? 0 : rng.below(8);
    const std::vector<int32_t> shared = random_ids(900, 70 + static_cast<uint64_t>(family));
    const int64_t begin = kind == 0 ? 20 : 100 * kind + 17 * family;
    const std::vector<int32_t> head(shared.begin(), shared.begin() + begin);
    Asked asked{
        join(head, random_ids(5 + 11 * kind, static_cast<uint64_t>(kind))),
        sampled(kind == 0 ? long_answer : 4 + 9 * kind, static_cast<uint64_t>(8 * family + kind))};
    if (rng.below(3) == 0) asked.params.forks = {begin / 2, begin};
    if (rng.below(4) == 0) asked.params.salt = "other";
    asked.params.priority = static_cast<int>(rng.below(3)) - 1;
    return asked;
  }
  EngineOptions random_options(Rng& rng) const {
    EngineOptions options = StoredPrefixes::options(static_cast<int>(1 + rng.below(6)));
    options.max_sequences = static_cast<int>(2 + rng.below(5));
    options.max_batch_tokens = 40 + rng.below(400);
    options.long_prompt = 50 + rng.below(800);
    options.cache_tokens = 1400 + rng.below(1500);
    options.checkpoint_interval = 128 * (1 + rng.below(4));
    options.model_identity = GetParam();
    options.longest_load = std::chrono::seconds(10);
    if (rng.below(4) > 0) options.tiers.ram_bytes = (2 + rng.below(14)) << 20;
    if (options.tiers.ram_bytes > 0 && rng.below(3) > 0) {
      options.tiers.folder = folder_.file("cache");
      options.tiers.disk_bytes = (4 + rng.below(60)) << 20;
    }
    return options;
  }

  test::TempFolder folder_;
};

TEST_P(EngineLoad, AnswersAreThoseOfRequestsAlone) {
  const char* const wanted = std::getenv("DSV4_LOAD_SECONDS");
  const char* const seed = std::getenv("DSV4_LOAD_SEED");
  const auto begin = std::chrono::steady_clock::now();
  const std::chrono::seconds length(wanted == nullptr ? 2 : std::atoi(wanted));
  Rng rng(seed == nullptr ? 17 : static_cast<uint64_t>(std::atoll(seed)));
  int64_t engines = 0, requests = 0, cancelled = 0, steps = 0;
  std::vector<double> resident;  // MB, after each tenth of the time
  EngineStats sum;
  do {
    const EngineOptions options = random_options(rng);
    Engine engine(model_, options);
    Compared sink;
    for (int64_t left = 10 + rng.below(30); left > 0 || !sink.open.empty();) {
      if (left > 0 && rng.below(4) == 0) {
        const Asked asked = random_request(rng, wanted == nullptr ? 300 : 800);
        const std::vector<int32_t>& answer = alone(asked.prompt, asked.params);
        const RequestId id = engine.submit(asked.prompt, asked.params, sink);
        sink.want[id] = &answer;
        sink.open.insert(id);
        --left, ++requests;
      }
      if (!sink.open.empty() && rng.below(200) == 0) {
        engine.cancel(*sink.open.begin());
        ++cancelled;
      }
      if (rng.below(300) == 0) engine.drop_prefixes(static_cast<PrefixTier>(rng.below(3)));
      engine.step();
      if (++steps % 100 == 0) engine.check_invariants();
    }
    engine.check_invariants();
    EXPECT_EQ(sink.wrong, 0) << "engine " << engines;
    const EngineStats stats = engine.stats();
    EXPECT_EQ(stats.pages_used, 0);
    ++engines;
    sum.preemptions += stats.preemptions;
    sum.cached_tokens += stats.cached_tokens;
    sum.ram_tokens += stats.ram_tokens;
    sum.disk_tokens += stats.disk_tokens;
    const auto now = std::chrono::steady_clock::now();
    if (now - begin >= length * static_cast<int>(resident.size() + 1) / 10)
      resident.push_back(resident_mb());
  } while (std::chrono::steady_clock::now() < begin + length && !HasFailure());
  fmt::print(
      "{} engines, {} steps, {} requests, {} cancelled, {} preemptions; tokens found: {}, from "
      "host memory {}, from disk {}; resident MB {:.0f}\n",
      engines, steps, requests, cancelled, sum.preemptions, sum.cached_tokens, sum.ram_tokens,
      sum.disk_tokens, fmt::join(resident, " "));
  if (engines >= 20) {
    EXPECT_GT(sum.preemptions, 0);
  }
  // The answers of requests alone, which are kept, are all known after a while; a leak goes on.
  // ThreadSanitizer itself keeps what it knows of threads that have ended.
  if (!kThreadSanitizer && length >= std::chrono::minutes(2) && resident.size() >= 6) {
    const auto half = resident.begin() + static_cast<std::ptrdiff_t>(resident.size() / 2);
    EXPECT_LT(*std::max_element(half, resident.end()),
              1.25 * *std::max_element(resident.begin(), half));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineLoad, testing::Values("random", "demo"),
                         [](const auto& model) { return std::string(model.param); });

}  // namespace
}  // namespace dsv4
