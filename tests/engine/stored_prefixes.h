// What tests of requests that begin with a stored prefix share: a model, and the answer of a
// request that runs alone in an engine that stores nothing. The programs *_gpu_test run them on a
// GPU, also with the bundled model.

#pragma once

#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "dsv4/engine/engine.h"
#include "tests/harness/random_model.h"
#include "tests/harness/tiny_model.h"
#include "tests/model/golden_files.h"
#if DSV4_TESTS_ON_GPU
#include "dsv4/engine/device_model.h"
#include "tests/harness/gpu.h"
#endif

namespace dsv4::test {

inline constexpr int64_t kStep = 128;  // checkpoints are at its multiples

#if DSV4_TESTS_ON_GPU
inline constexpr const char* kModels[] = {"random", "demo"};
#else
inline constexpr const char* kModels[] = {"random"};
#endif

inline Model stored_prefix_model(const std::string& name) {
  Model model = name == "random" ? random_model(tiny_config(), 6) : Model::load("models/demo");
#if DSV4_TESTS_ON_GPU
  if (gpu() != nullptr) move_to_device(model, {gpu(), [](Device*) {}}, [](int64_t, int64_t) {});
#endif
  return model;
}

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
  void on_stats(RequestId id, const RequestStats& cost) override { stats[id] = cost; }

  std::map<RequestId, int64_t> cached;
  std::map<RequestId, std::vector<int32_t>> tokens;
  std::map<RequestId, RequestStats> stats;
};

inline std::vector<int32_t> join(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class StoredPrefixes : public testing::TestWithParam<const char*> {
 protected:
#if DSV4_TESTS_ON_GPU
  void SetUp() override {
    if (gpu() == nullptr) GTEST_SKIP() << "no GPU";
  }
#endif
  static EngineOptions options(int checkpoints) {
    return {.deterministic = true,
            .max_tokens = 1400,
            .max_sequences = 3,
            .max_batch_tokens = 600,
            .prefix_checkpoints = checkpoints};
  }
  std::vector<int32_t> random_ids(int64_t n, uint64_t seed) const {
    return test::random_ids(n, model_.config().vocab_size, seed);
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

  const Model model_ = stored_prefix_model(GetParam());

 private:
  std::map<std::tuple<std::vector<int32_t>, uint64_t, int64_t>, std::vector<int32_t>> alone_;
};

}  // namespace dsv4::test
