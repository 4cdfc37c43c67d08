// The trace of experts: what the file holds, against the tables of hash layers and for any chunks.

#include "dsv4/engine/expert_trace.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <map>
#include <numeric>

#include "dsv4/base/error.h"
#include "dsv4/base/mapped_file.h"
#include "dsv4/base/rng.h"
#include "dsv4/engine/engine.h"
#include "tests/harness/errors.h"
#include "tests/harness/temp_folder.h"

namespace dsv4 {
namespace {

struct Token {
  std::vector<std::vector<uint16_t>> chosen;  // [layers]
};
struct Trace {
  uint32_t layers = 0, experts = 0, k = 0;
  std::vector<size_t> steps;                 // tokens of each
  std::map<int64_t, std::vector<Token>> of;  // of a sequence, in order
};

// Reads the file as its header describes it.
Trace read_trace(const std::string& path) {
  const std::string bytes = read_text_file(path);
  size_t at = 0;
  const auto take = [&](auto& value) {
    ASSERT_LE(at + sizeof(value), bytes.size());
    std::memcpy(&value, bytes.data() + at, sizeof(value));
    at += sizeof(value);
  };
  Trace trace;
  char magic[8] = {};
  uint32_t version = 0;
  take(magic), take(version), take(trace.layers), take(trace.experts), take(trace.k);
  EXPECT_EQ(std::string(magic, 8), "dsv4xtrc");
  EXPECT_EQ(version, 1u);
  while (at < bytes.size() && !testing::Test::HasFailure()) {
    uint32_t tokens = 0;
    take(tokens);
    std::vector<int64_t> sequences(tokens);
    for (int64_t& sequence : sequences) take(sequence);
    std::vector<Token> step(tokens);
    for (uint32_t l = 0; l < trace.layers; ++l) {
      for (Token& token : step) {
        std::vector<uint16_t> chosen(trace.k);
        for (uint16_t& expert : chosen) take(expert);
        token.chosen.push_back(chosen);
      }
    }
    trace.steps.push_back(tokens);
    for (uint32_t t = 0; t < tokens; ++t) trace.of[sequences[t]].push_back(step[t]);
  }
  return trace;
}

class Answer : public TokenSink {
 public:
  void on_token(RequestId, const Sampled& token) override { ids.push_back(token.id); }
  void on_finish(RequestId, Finish) override {}
  std::vector<int32_t> ids;
};

class ExpertTraceTest : public testing::Test {
 protected:
  // The trace of these prompts with answers of 5 tokens.
  Trace traced(const std::vector<std::vector<int32_t>>& prompts, int64_t max_batch_tokens,
               std::vector<Answer>* answers = nullptr) {
    const std::string path = folder.file(fmt::format("trace{}", ++count));
    const auto trace = std::make_shared<ExpertTrace>(path, model.config());
    Engine engine(model, {.deterministic = true,
                          .max_tokens = 200,
                          .max_sequences = 3,
                          .max_batch_tokens = max_batch_tokens,
                          .expert_trace = trace});
    std::vector<Answer> sinks(prompts.size());
    for (size_t i = 0; i < prompts.size(); ++i)
      engine.submit(prompts[i], {.sampling = {.temperature = 0}, .max_new_tokens = 5}, sinks[i]);
    while (engine.step()) {
    }
    trace->finish();
    if (answers != nullptr) *answers = sinks;
    const Trace read = read_trace(path);
    EXPECT_EQ(trace->uses(), uses_of(read));
    return read;
  }
  static std::vector<std::vector<int64_t>> uses_of(const Trace& trace) {
    std::vector<std::vector<int64_t>> uses(trace.layers, std::vector<int64_t>(trace.experts));
    for (const auto& [sequence, tokens] : trace.of)
      for (const Token& token : tokens)
        for (size_t l = 0; l < trace.layers; ++l)
          for (const uint16_t e : token.chosen[l]) ++uses[l][e];
    return uses;
  }
  std::vector<int32_t> random_prompt(int64_t n, uint64_t seed) const {
    Rng rng(seed);
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < n; ++i)
      ids.push_back(static_cast<int32_t>(rng.below(model.config().vocab_size)));
    return ids;
  }
  static std::vector<std::vector<std::vector<uint16_t>>> sorted(const Trace& trace) {
    std::vector<std::vector<std::vector<uint16_t>>> all;
    for (const auto& [sequence, tokens] : trace.of)
      for (const Token& token : tokens) all.push_back(token.chosen);
    std::ranges::sort(all);
    return all;
  }

  const Model model = Model::load("models/demo");
  test::TempFolder folder;
  int count = 0;
};

TEST_F(ExpertTraceTest, HoldsEveryTokenOfEverySequence) {
  std::vector<Answer> answers;
  const std::vector<std::vector<int32_t>> prompts{random_prompt(40, 1), random_prompt(7, 2)};
  const Trace trace = traced(prompts, 16, &answers);
  const ModelConfig& config = model.config();
  EXPECT_EQ(trace.layers, config.num_layers);
  EXPECT_EQ(trace.experts, config.num_experts);
  EXPECT_EQ(trace.k, config.experts_per_token);
  ASSERT_EQ(trace.of.size(), 2u);
  EXPECT_GT(trace.steps.size(), 4u + 2u);
  int64_t hash_layers = 0;
  for (const auto& [sequence, tokens] : trace.of) {
    const size_t which =
        tokens.size() == 40 + 4 ? 0 : 1;  // the last token of an answer is not read
    std::vector<int32_t> ids = prompts[which];
    ids.insert(ids.end(), answers[which].ids.begin(), answers[which].ids.end() - 1);
    ASSERT_EQ(tokens.size(), ids.size());
    for (size_t t = 0; t < tokens.size(); ++t) {
      for (size_t l = 0; l < trace.layers; ++l) {
        std::vector<uint16_t> chosen = tokens[t].chosen[l];
        const ConstTensorView& table = model.weights().layers[l].moe.tid2eid;
        for (size_t j = 0; !table.empty() && j < chosen.size(); ++j, ++hash_layers) {
          const auto at = static_cast<size_t>(ids[t]) * trace.k + j;
          const int64_t want =
              table.dtype == DType::kI64 ? table.as<int64_t>()[at] : table.as<int32_t>()[at];
          ASSERT_EQ(chosen[j], want) << "token " << t << ", layer " << l;
        }
        std::ranges::sort(chosen);
        EXPECT_EQ(std::ranges::adjacent_find(chosen), chosen.end());
        EXPECT_LT(chosen.back(), trace.experts);
      }
    }
  }
  EXPECT_GT(hash_layers, 0);
}

TEST_F(ExpertTraceTest, IsTheSameForAnyChunks) {
  const std::vector<std::vector<int32_t>> prompts{random_prompt(33, 3), random_prompt(50, 4),
                                                  random_prompt(2, 5)};
  const auto want = sorted(traced(prompts, 200));
  EXPECT_EQ(sorted(traced(prompts, 7)), want);
  EXPECT_EQ(sorted(traced(prompts, 3)), want);
}

TEST_F(ExpertTraceTest, CountsUsesWithoutAFile) {
  ExpertTrace trace("", model.config());
  Executor executor(model, {}, {.max_tokens = 50, .max_batch_tokens = 50});
  executor.trace_experts(&trace);
  const std::vector<int32_t> ids = random_prompt(50, 8);
  const Work work{executor.cache().open(), ids, Work::Logits::kLast};
  executor.run({&work, 1});
  trace.finish();
  for (const std::vector<int64_t>& layer : trace.uses())
    EXPECT_EQ(std::reduce(layer.begin(), layer.end()), 50 * model.config().experts_per_token);
}

// Drafts that are verified are tokens of the step; the block that guesses them has no part in it.
TEST_F(ExpertTraceTest, LeavesOutTheDrafter) {
  const Model drafting = Model::load("models/demo", DrafterKind::kMtp);
  const std::string path = folder.file("drafts");
  const auto trace = std::make_shared<ExpertTrace>(path, drafting.config());
  Engine engine(drafting, {.deterministic = true,
                           .max_tokens = 200,
                           .max_batch_tokens = 64,
                           .speculate = Speculate::kMtp,
                           .draft_tokens = 3,
                           .expert_trace = trace});
  const std::vector<int32_t> prompt = random_prompt(40, 7);
  Answer sink;
  engine.submit(prompt, {.sampling = {.temperature = 0}, .max_new_tokens = 8}, sink);
  while (engine.step()) {
  }
  trace->finish();
  const Trace read = read_trace(path);
  EXPECT_EQ(read.layers, drafting.config().num_layers);
  ASSERT_EQ(read.of.size(), 1u);
  EXPECT_GT(read.of.begin()->second.size(), prompt.size() + sink.ids.size() - 1) << "no drafts";
  for (const Token& token : read.of.begin()->second) EXPECT_EQ(token.chosen.size(), read.layers);
}

TEST_F(ExpertTraceTest, IsRefusedOnSeveralRanks) {
  const Model divided = Model::load("models/demo", 2);
  const auto trace = std::make_shared<ExpertTrace>(folder.file("ranks"), divided.config());
  EXPECT_TRUE(test::says(
      test::error_of(ErrorCode::kUnsupported,
                     [&] { Engine(divided, {.max_tokens = 64, .expert_trace = trace}); }),
      "of a whole model"));
}

// Steps go on, and the end says it.
TEST_F(ExpertTraceTest, SaysThatItCouldNotWrite) {
  const std::string path = folder.file("full");
  ExpertTrace trace(path, model.config());
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{.rlim_cur = 1000, .rlim_max = before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  Executor executor(model, {}, {.max_tokens = 200, .max_batch_tokens = 200});
  executor.trace_experts(&trace);
  const std::vector<int32_t> ids = random_prompt(200, 6);
  const Work work{executor.cache().open(), ids, Work::Logits::kLast};
  executor.run({&work, 1});
  const std::string error = test::error_of(ErrorCode::kIo, [&] { trace.finish(); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(error, "cannot write " + path + ": File too large; the trace of experts ends there");
}

TEST_F(ExpertTraceTest, NeverReplacesAFile) {
  const std::string path = folder.file("there");
  folder.write("there", "text");
  EXPECT_EQ(test::error_of(ErrorCode::kBadInput, [&] { ExpertTrace(path, model.config()); }),
            path + " exists: give another file for the trace of experts");
  EXPECT_EQ(read_text_file(path), "text");
  EXPECT_TRUE(test::says(
      test::error_of(ErrorCode::kIo, [&] { ExpertTrace("/no/such/folder/x", model.config()); }),
      "No such file or directory"));
}

}  // namespace
}  // namespace dsv4
