// Engines and models whose tokens are not those of the tokenizer.

#include <gtest/gtest.h>

#include "tests/server/service_data.h"

namespace dsv4 {
namespace {

using nlohmann::json;
using test::Answer;
using test::ask;
using test::chat_body;
using test::metric;
using test::ScriptedServer;

// A model may have more ids than its tokenizer has texts. Clients cannot name those ids, and one
// that the model chooses has no text.
TEST(ServiceFaults, IdsWithoutTextAreNoText) {
  const int32_t known = test::demo_text()->tokenizer->vocab_size();
  const std::string first = std::to_string(known);
  ScriptedServer padded(R"({"match": "pad", "ids": [)" + first + R"(, 5, )" + first + R"(]}
{"output": "Hello there."})",
                        {.padding_ids = 64});
  const Answer answer = padded.post("/v1/completions", {{"prompt", "pad"}, {"logprobs", 2}});
  EXPECT_EQ(answer.status, 200) << answer.body;
  const std::string text(test::demo_text()->tokenizer->token_bytes(5));
  EXPECT_EQ(answer.json()["choices"][0]["text"], text);
  EXPECT_EQ(padded.post("/v1/chat/completions", chat_body("pad")).status, 200);
  const std::vector<json> wrong = {{{"prompt", "x"}, {"logit_bias", {{first, 100}}}},
                                   {{"prompt", "x"}, {"stop_token_ids", {known}}},
                                   {{"prompt", {known}}},
                                   {{"prompt", {known}}, {"echo", true}}};
  for (const json& body : wrong)
    EXPECT_EQ(padded.post("/v1/completions", body).status, 400) << body;
  EXPECT_EQ(padded.post("/v1/dsv4/detokenize", {{"tokens", {known}}}).status, 400);
  EXPECT_EQ(padded.post("/v1/chat/completions", chat_body("Hi")).status, 200);
}

// An engine whose answers have an id that no tokenizer has, except that of the first request, the
// canary.
class NonsenseEngine : public EnginePort {
 public:
  explicit NonsenseEngine(EngineLimits limits) : limits_(std::move(limits)) {}
  const EngineLimits& limits() const override { return limits_; }
  RequestId submit(std::span<const int32_t>, const GenerateParams&, TokenSink& sink) override {
    running_.push_back(&sink);
    return static_cast<RequestId>(++submitted_);
  }
  void cancel(RequestId) override { cancelled_ = true; }
  bool step() override {
    const bool canary = submitted_ == 1;
    for (TokenSink* sink : running_) sink->on_token({}, {.id = canary ? 5 : -1});
    if (!canary && !cancelled_) return true;
    for (TokenSink* sink : std::exchange(running_, {})) sink->on_finish({}, Finish::kCancelled);
    cancelled_ = false;
    return false;
  }
  EngineStats stats() const override { return {}; }

 private:
  const EngineLimits limits_;
  std::vector<TokenSink*> running_;
  uint64_t submitted_ = 0;
  bool cancelled_ = false;
};

// What an answer throws on the I/O thread ends this answer and not the server.
TEST(ServiceFaults, AnExceptionEndsOneRequest) {
  ScriptedServer nonsense("", {.engine = [](const EngineLimits& limits) {
                            return std::make_unique<NonsenseEngine>(limits);
                          }});
  for (const bool stream : {false, true}) {
    json body = chat_body("Hi");
    body["stream"] = stream;
    const Answer answer = nonsense.post("/v1/chat/completions", body);
    EXPECT_EQ(answer.status, stream ? 200 : 500);
    EXPECT_TRUE(answer.complete);
    EXPECT_NE(answer.body.find("internal error"), answer.body.npos) << answer.body;
  }
  EXPECT_EQ(ask(nonsense.port(), "GET", "/health").status, 200);
  for (int i = 0; i < 200 && metric(nonsense.port(), "dsv4_requests_running") != 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(metric(nonsense.port(), "dsv4_requests_running"), 0) << "its job still runs";
}

// An engine on a device whose memory fills up.
class DeviceEngine : public NonsenseEngine {
 public:
  using NonsenseEngine::NonsenseEngine;
  MemoryUse device_memory() const override {
    return {.total_bytes = 1000, .free_bytes = 900 - 100 * asked_++};
  }
  ExpertStats expert_stats() const override {
    ExpertCounts first{.hits = 10, .moves = 3, .read_at_home = 1}, second{.hits = 20, .moves = 4};
    first.moved_bytes = 300, first.home_bytes = 100, second.moved_bytes = 800;
    first.impossible = 2;
    return {.layers = {first, second}, .prompt_steps = asked_, .prompt_bytes = 7000 * asked_};
  }

 private:
  mutable int asked_ = 0;
};

TEST(ServiceFaults, MemoryOfTheGpuIsAskedForAgain) {
  ScriptedServer one("", {.engine = [](const EngineLimits& limits) {
                       return std::make_unique<DeviceEngine>(limits);
                     }});
  const auto bytes = [&](const char* use) {
    return metric(one.port(), std::string("dsv4_gpu_memory_bytes{use=\"") + use + "\"}");
  };
  EXPECT_EQ(bytes("free"), 900);
  EXPECT_EQ(bytes("taken"), 100);
  for (int i = 0; i < 1000 && bytes("free") == 900; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(bytes("free"), 800);
}

TEST(ServiceFaults, ExpertsInHostMemoryAreCounted) {
  ScriptedServer one("", {.engine = [](const EngineLimits& limits) {
                       return std::make_unique<DeviceEngine>(limits);
                     }});
  const auto value = [&](const char* name) { return metric(one.port(), name); };
  EXPECT_EQ(value("dsv4_expert_hits_total{layer=\"0\"}"), 10);
  EXPECT_EQ(value("dsv4_expert_hits_total{layer=\"1\"}"), 20);
  EXPECT_EQ(value("dsv4_expert_misses_total{layer=\"0\"}"), 4);
  EXPECT_EQ(value("dsv4_expert_misses_total{layer=\"1\"}"), 4);
  EXPECT_EQ(value("dsv4_expert_link_bytes_total{path=\"fetch\"}"), 1100);
  EXPECT_EQ(value("dsv4_expert_link_bytes_total{path=\"home\"}"), 100);
  EXPECT_EQ(value("dsv4_expert_bad_ids_total"), 2);
  const double before = value("dsv4_expert_prompt_steps_total");
  for (int i = 0; i < 1000 && value("dsv4_expert_prompt_steps_total") == before; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const double after = value("dsv4_expert_prompt_steps_total");
  EXPECT_GT(after, before);
  EXPECT_GE(value("dsv4_expert_link_bytes_total{path=\"prompt\"}"), 7000 * after);

  ScriptedServer none("", {.engine = [](const EngineLimits& limits) {
                        return std::make_unique<NonsenseEngine>(limits);
                      }});
  const std::string without = ask(none.port(), "GET", "/metrics").body;
  EXPECT_NE(without.find("dsv4_engine_steps_total"), without.npos);
  EXPECT_EQ(without.find("dsv4_expert_hits_total{"), without.npos);
}

}  // namespace
}  // namespace dsv4
