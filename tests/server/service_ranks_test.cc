// /metrics of a server whose model is divided over ranks.

#include <gtest/gtest.h>

#include <atomic>

#include "tests/server/service_data.h"

namespace dsv4::test {
namespace {

constexpr int kWorld = 3;

double of_rank(uint16_t port, const std::string& name, int rank, const std::string& use = "") {
  const std::string labels = fmt::format("{{rank=\"{}\"{}}}", rank, use);
  return metric(port, name + labels);
}

TEST(ServiceRanks, EveryRankHasMetrics) {
  // Rank 1 begins a step after rank 0, and late: the others wait for it.
  std::atomic<int64_t> begun{-1};
  EngineOptions options{.max_tokens = 128, .max_sequences = 2};
  options.ranks.before_step = [&](ShardId id, int64_t step) {
    if (id.rank == 0) begun = step;
    if (id.rank != 1) return;
    while (begun < step) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  };
  ScriptedServer ranks("", {.context = 128, .engine = [&](const EngineLimits&) {
                              return model_engine(
                                  std::make_shared<Model>(Model::load("models/demo", kWorld)),
                                  options);
                            }});
  const uint16_t port = ranks.port();
  json body = chat_body("Hi");
  body["max_tokens"] = 5;
  ASSERT_EQ(ranks.chat(body).status, 200);
  const auto steps = [&] { return metric(port, "dsv4_engine_steps_total"); };
  // They are read from the engine every other second.
  for (int i = 0; i < 1000 && of_rank(port, "dsv4_rank_steps_total", 0) != steps(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ASSERT_GE(steps(), 2);
  double weights = 0;
  for (int rank = 0; rank < kWorld; ++rank) {
    const auto value = [&](const char* name, const char* use = "") {
      return of_rank(port, name, rank, use);
    };
    EXPECT_EQ(value("dsv4_rank_steps_total"), steps()) << rank;
    EXPECT_GT(value("dsv4_rank_received_bytes_total"), 0) << rank;
    EXPECT_GT(value("dsv4_rank_wait_seconds_total"), 0) << rank;
    EXPECT_LE(value("dsv4_rank_wait_seconds_total"), value("dsv4_rank_step_seconds_total")) << rank;
    EXPECT_GT(value("dsv4_rank_memory_bytes", ",use=\"workspace\""), 0) << rank;
    EXPECT_EQ(value("dsv4_rank_memory_bytes", ",use=\"cache\""),
              of_rank(port, "dsv4_rank_memory_bytes", 0, ",use=\"cache\""));
    weights += value("dsv4_rank_memory_bytes", ",use=\"weights\"");
  }
  EXPECT_GT(of_rank(port, "dsv4_rank_wait_seconds_total", 0),
            of_rank(port, "dsv4_rank_wait_seconds_total", 1));
  // A whole model has the weights once, ranks have some of them each.
  const auto whole = static_cast<double>(Model::load("models/demo").weight_bytes());
  EXPECT_GT(weights, whole);
  EXPECT_LT(weights, kWorld * whole);
  const std::string text = ask(port, "GET", "/metrics").body;
  EXPECT_EQ(text.find("dsv4_rank_gpu_memory_bytes{"), text.npos) << "no GPU here";
}

}  // namespace
}  // namespace dsv4::test
