// What tests of requests that begin with a stored prefix share: a small random model, and the
// answer of a request that runs alone in an engine that stores nothing.

#pragma once

#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "dsv4/engine/engine.h"
#include "tests/harness/random_model.h"
#include "tests/harness/tiny_model.h"
#include "tests/model/golden_files.h"

namespace dsv4::test {

inline constexpr int64_t kStep = 256;  // tokens between checkpoints

struct Answers : TokenSink {
  void on_start(RequestId id, int64_t cached_tokens) override {
    EXPECT_FALSE(cached.contains(id)) << "started twice";
    cached[id] = cached_tokens;
  }
  void on_token(RequestId id, const Sampled& token) override {
    EXPECT_TRUE(cached.contains(id)) << "a token before the start";
    tokens[id].push_back(token.id);
  }
  void on_finish(RequestId, Finish) override {}

  std::map<RequestId, int64_t> cached;
  std::map<RequestId, std::vector<int32_t>> tokens;
};

inline std::vector<int32_t> join(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class StoredPrefixes : public testing::Test {
 protected:
  static constexpr int64_t kVocab = 40;  // of tiny_config()

  static EngineOptions options(int checkpoints) {
    return {.deterministic = true,
            .max_tokens = 1400,
            .max_sequences = 3,
            .max_batch_tokens = 600,
            .prefix_checkpoints = checkpoints};
  }
  static std::vector<int32_t> random_ids(int64_t n, uint64_t seed) {
    return test::random_ids(n, kVocab, seed);
  }
  static GenerateParams sampled(int64_t n, uint64_t seed) {
    return {.sampling = {.temperature = 0.9f, .seed = seed}, .max_new_tokens = n};
  }
  static void finish(Engine& engine) {
    while (engine.step()) {
    }
  }
  const std::vector<int32_t>& alone(const std::vector<int32_t>& prompt,
                                    const GenerateParams& params) {
    const auto [at, fresh] =
        alone_.try_emplace({prompt, params.sampling.seed, params.max_new_tokens});
    if (!fresh) return at->second;
    Engine engine(model_, options(0));
    Answers sink;
    const RequestId id = engine.submit(prompt, params, sink);
    finish(engine);
    return at->second = sink.tokens[id];
  }

  Model model_ = random_model(tiny_config(), 6);

 private:
  std::map<std::tuple<std::vector<int32_t>, uint64_t, int64_t>, std::vector<int32_t>> alone_;
};

}  // namespace dsv4::test
