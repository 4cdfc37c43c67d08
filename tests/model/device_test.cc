// The whole model on a GPU, compared with the CPU implementations, with transformers, and with
// itself in any chunking, with and without captured decode steps.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "dsv4/device/device.h"
#include "dsv4/engine/device_model.h"
#include "dsv4/engine/engine.h"
#include "tests/harness/errors.h"
#include "tests/harness/gpu.h"
#include "tests/model/golden_files.h"

namespace dsv4 {
namespace {

using test::largest_difference;
using test::random_ids;

std::shared_ptr<Device> shared_gpu() {
  return {test::gpu(), [](Device*) {}};  // the harness owns it
}

Model on_gpu(const std::string& folder) {
  Model model = Model::load(folder);
  move_to_device(model, shared_gpu(), [](int64_t, int64_t) {});
  return model;
}

class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (test::gpu() == nullptr) GTEST_SKIP() << "no GPU";
  }
};

TEST_F(OnGpu, ExactDemoLogitsMatchTheCpu) {
  const Model cpu = Model::load("models/demo"), gpu = on_gpu("models/demo");
  const std::vector<int32_t> ids = random_ids(700, cpu.config().vocab_size, 1);
  const double off = largest_difference(test::all_logits(cpu, Numerics::kExact, ids, 512),
                                        test::all_logits(gpu, Numerics::kExact, ids, 512));
  fmt::print("exact, demo, GPU against CPU: max |difference| {:.2e}\n", off);
  EXPECT_LE(off, 1e-3);
}

class HfGoldenOnGpu : public OnGpu, public testing::WithParamInterface<const char*> {};

// Goldens and limit are those of the CPU (hf_golden_test.cc).
TEST_P(HfGoldenOnGpu, LogitsAgree) {
  const std::string folder = test::kGoldenFolder + "hf/" + GetParam();
  const Model model = on_gpu(folder);
  const std::vector<int32_t> ids = test::read_ids(folder + "/ids.txt");
  const Buffer got = test::all_logits(model, Numerics::kExact, ids, 512);
  const SafetensorsFile golden(folder + "/logits.safetensors");
  const ConstTensorView want = golden.tensors().at("logits"),
                        positions = golden.tensors().at("positions");
  double worst = 0;
  for (int64_t i = 0; i < want.dim(0); ++i) {
    const float* row = got.view().row<float>(positions.as<int32_t>()[i]);
    for (int64_t v = 0; v < want.dim(1); ++v) {
      const double off =
          std::abs(static_cast<double>(row[v]) - static_cast<double>(want.row<float>(i)[v]));
      if (!(off <= worst)) worst = off;
    }
  }
  fmt::print("{}: max |difference| {:.2e}\n", GetParam(), worst);
  EXPECT_LE(worst, 2e-4);
}

INSTANTIATE_TEST_SUITE_P(Configs, HfGoldenOnGpu,
                         testing::Values("mixed", "hash3", "hd128", "hc2", "pro", "top1"),
                         [](const auto& config) { return std::string(config.param); });

struct Answer : TokenSink {
  std::vector<int32_t> tokens;
  void on_token(RequestId, const Sampled& token) override { tokens.push_back(token.id); }
  void on_finish(RequestId, Finish) override {}
};

std::vector<int32_t> greedy(const Model& model, std::span<const int32_t> prompt, int64_t n,
                            bool deterministic) {
  Engine engine(model, {.deterministic = deterministic, .max_tokens = 1024});
  Answer answer;
  engine.submit(prompt, {.sampling = {.temperature = 0}, .max_new_tokens = n}, answer);
  while (engine.step()) {
  }
  return answer.tokens;
}

// The CPU's logit of its own choice minus that of the GPU's choice, after the same tokens.
double logit_gap(const Model& model, std::vector<int32_t> ids, int32_t own, int32_t other) {
  const Buffer logits = test::all_logits(model, Numerics::kOfficial, ids, 512);
  const float* last = logits.view().row<float>(static_cast<int64_t>(ids.size()) - 1);
  return static_cast<double>(last[own]) - static_cast<double>(last[other]);
}

// Official numerics round activations to 8 bits, so a different summation order changes logits by a
// root mean square of about 0.2 (PyTorch CPU against PyTorch H100: 0.16, demo_test.cc): greedy
// choices may differ where the logits of two tokens are closer than that.
TEST_F(OnGpu, OfficialDemoTextMatchesTheCpu) {
  constexpr double kRounding = 0.6;
  const Model cpu = Model::load("models/demo"), gpu = on_gpu("models/demo");
  const std::vector<int32_t> prompt = random_ids(40, cpu.config().vocab_size, 5);
  const std::vector<int32_t> want = greedy(cpu, prompt, 200, false);
  for (const bool deterministic : {false, true}) {
    const std::vector<int32_t> got = greedy(gpu, prompt, 200, deterministic);
    const auto [w, g] = std::mismatch(want.begin(), want.end(), got.begin(), got.end());
    if (w == want.end() || g == got.end()) {
      EXPECT_EQ(want.size(), got.size());
      fmt::print("greedy, deterministic {}: all {} tokens equal\n", deterministic, got.size());
      continue;
    }
    std::vector<int32_t> ids = prompt;
    ids.insert(ids.end(), want.begin(), w);
    const double gap = logit_gap(cpu, ids, *w, *g);
    fmt::print("greedy, deterministic {}: first difference at token {}, logit gap {:.3f}\n",
               deterministic, w - want.begin(), gap);
    EXPECT_LE(gap, kRounding);
  }
}

// A row of a step's sampler with any mixture of terms, mask, cuts and listed tokens.
void add_random_row(SampleLists& lists, int64_t vocab, Rng& rng) {
  SamplingParams params{.temperature = rng.below(3) == 0 ? 0 : 1.3f,
                        .seed = static_cast<uint64_t>(rng.below(1000)),
                        .repetition_penalty = 1.3f,
                        .frequency_penalty = 0.4f,
                        .presence_penalty = 0.2f};
  if (rng.below(2) == 0) params.min_p = 0.02f;
  if (rng.below(2) == 0) params.top_k = 30;
  if (rng.below(2) == 0) params.top_logprobs = static_cast<int>(rng.below(21));
  std::vector<TokenTerm> terms;
  const int64_t step = 1 + rng.below(20);
  for (int64_t id = rng.below(40); rng.below(3) > 0 && id < vocab; id += step) {
    terms.push_back({.id = static_cast<int32_t>(id),
                     .count = static_cast<int32_t>(rng.below(3)),
                     .seen = static_cast<int32_t>(rng.below(2)),
                     .bias = static_cast<float>(rng.below(9)) - 4});
  }
  lists.add(params, static_cast<uint64_t>(rng.below(100)), terms);
  if (rng.below(2) == 0) return;
  for (uint32_t& word : lists.mask()) word = static_cast<uint32_t>(rng.below(int64_t{1} << 32));
}

// The device's logits, sampled on the device and again on the host: the same tokens and bits.
TEST_F(OnGpu, SamplesWithTheBitsOfTheCpu) {
  const CacheLimits limits{.max_tokens = 64, .max_sequences = 5, .max_batch_tokens = 64};
  const Model cpu = Model::load("models/demo"), gpu = on_gpu("models/demo");
  const int64_t vocab = cpu.config().vocab_size;
  Executor executor(gpu, {}, limits);
  const std::unique_ptr<Runner> host = make_runner(cpu, {}, limits);
  std::vector<SeqId> sequences;
  for (int i = 0; i < limits.max_sequences; ++i) sequences.push_back(executor.cache().open());
  Rng rng(20261122);
  for (int step = 0; step < 40; ++step) {
    const auto rows = static_cast<size_t>(1 + rng.below(limits.max_sequences));
    const std::vector<int32_t> ids = random_ids(limits.max_sequences, vocab, 100 + step);
    std::vector<Work> work;
    SampleLists lists(vocab);
    for (size_t i = 0; i < rows; ++i) {
      work.push_back({sequences[i], {&ids[i], 1}, Work::Logits::kLast});
      add_random_row(lists, vocab, rng);
    }
    const ConstTensorView logits = executor.run(work);
    const std::vector<Sampled> have = executor.sample(lists.rows());
    const std::vector<Sampled> want = host->sample(logits, lists.rows());
    ASSERT_EQ(have.size(), rows);
    for (size_t i = 0; i < rows; ++i) {
      EXPECT_EQ(have[i].id, want[i].id) << "step " << step << " row " << i;
      EXPECT_EQ(have[i].logprob, want[i].logprob);
      ASSERT_EQ(have[i].top.size(), want[i].top.size());
      for (size_t k = 0; k < want[i].top.size(); ++k) {
        EXPECT_EQ(have[i].top[k].id, want[i].top[k].id);
        EXPECT_EQ(have[i].top[k].logprob, want[i].top[k].logprob);
      }
    }
  }
}

Buffer logits_of(const Model& model, const Context& context, std::span<const int32_t> ids,
                 int64_t chunk) {
  const int64_t vocab = model.config().vocab_size;
  Buffer all(DType::kF32, {static_cast<int64_t>(ids.size()), vocab});
  score(model, context, ids, chunk, [&](int64_t first, const ConstTensorView& logits) {
    std::copy_n(logits.as<float>(), logits.numel(), all.view().row<float>(first));
  });
  return all;
}

// Decode steps of one token are captured after the second, so chunk 1 is the graph path.
TEST_F(OnGpu, AnyChunkGivesTheSameBitsWhenDeterministic) {
  for (const char* folder : {"models/demo", "tests/golden/hf/mixed"}) {
    const Model model = on_gpu(folder);
    const std::vector<int32_t> ids = random_ids(300, model.config().vocab_size, 2);
    const bool demo = std::string(folder) == "models/demo";
    for (const Numerics numerics : {Numerics::kExact, Numerics::kOfficial}) {
      if (!demo && numerics == Numerics::kOfficial) continue;  // no packed cache supports its dims
      const Context context{.numerics = numerics, .need_batch_invariant = true};
      const Buffer whole = logits_of(model, context, ids, 300);
      for (const int64_t chunk : {1, 2, 7, 64, 128, 129}) {
        EXPECT_TRUE(test::same_bits(whole, logits_of(model, context, ids, chunk)))
            << folder << " " << name(numerics) << " in chunks of " << chunk;
      }
    }
  }
}

// Steps as in speculative verification: up to 8 tokens of each of three sequences with all their
// logits, in different numbers, some of which are rolled back. From its second step on a size is
// captured.
TEST_F(OnGpu, StepsOfAFewTokensGiveTheSameBitsWhenDeterministic) {
  constexpr int64_t kTokens = 260, kRollback = 2;
  const Model model = on_gpu("models/demo");
  const int64_t vocab = model.config().vocab_size;
  const Context context{.need_batch_invariant = true};
  std::vector<std::vector<int32_t>> ids;
  std::vector<Buffer> want;
  for (uint64_t i = 0; i < 3; ++i) {
    ids.push_back(random_ids(kTokens + 8, vocab, 20 + i));
    want.push_back(logits_of(model, context, ids.back(), 64));
  }
  for (int64_t most = 1; most <= 8; ++most) {
    Executor executor(model, context,
                      {.max_tokens = kTokens + 8,
                       .max_sequences = 3,
                       .max_batch_tokens = 64,
                       .max_logits_rows = 64,
                       .max_rollback = kRollback});
    std::vector<SeqId> seqs;
    for (size_t i = 0; i < ids.size(); ++i) seqs.push_back(executor.cache().open());
    for (int64_t s = 0; executor.cache().length(seqs[0]) < kTokens - 8; ++s) {
      std::vector<Work> work;
      std::vector<int64_t> at, count;
      for (size_t i = 0; i < ids.size(); ++i) {
        at.push_back(executor.cache().length(seqs[i]));
        count.push_back(std::max<int64_t>(1, most - (s + static_cast<int64_t>(i)) % 3));
        work.push_back({seqs[i],
                        std::span<const int32_t>(ids[i]).subspan(static_cast<size_t>(at[i]),
                                                                 static_cast<size_t>(count[i])),
                        Work::Logits::kAll});
      }
      const ConstTensorView logits = executor.run(work);
      int64_t row = 0;
      for (size_t i = 0; i < ids.size(); row += count[i++]) {
        ASSERT_TRUE(test::same_bits(logits.slice(0, row, row + count[i]),
                                    want[i].view().slice(0, at[i], at[i] + count[i])))
            << most << " tokens, step " << s << ", sequence " << i;
        const int64_t back = std::min<int64_t>(kRollback, count[i] - 1);
        if (s % 4 == 3) executor.cache().truncate(seqs[i], at[i] + count[i] - back);
      }
    }
  }
}

// Without the guarantee of equal bits: equal up to rounding.
TEST_F(OnGpu, AnyChunkGivesTheSameLogits) {
  const Model model = on_gpu("models/demo");
  const std::vector<int32_t> ids = random_ids(300, model.config().vocab_size, 3);
  const Context context{.numerics = Numerics::kExact};
  const Buffer whole = logits_of(model, context, ids, 300);
  for (const int64_t chunk : {1, 5, 128})
    EXPECT_LE(largest_difference(whole, logits_of(model, context, ids, chunk)), 1e-3) << chunk;
}

// Sequences that start, end and pause at different times: all batch sizes up to four, so both
// padded and full captured steps.
TEST_F(OnGpu, DoesNotDependOnTheBatchWhenDeterministic) {
  const Model model = on_gpu("models/demo");
  std::vector<std::vector<int32_t>> alone;
  std::vector<Answer> together(4);
  Engine engine(model, {.deterministic = true, .max_tokens = 400, .max_sequences = 4});
  for (size_t i = 0; i < together.size(); ++i) {
    const std::vector<int32_t> prompt =
        random_ids(20 + 90 * static_cast<int64_t>(i), model.config().vocab_size, 10 + i);
    const int64_t n = 60 - 13 * static_cast<int64_t>(i);
    alone.push_back(greedy(model, prompt, n, true));
    engine.submit(prompt, {.sampling = {.temperature = 0}, .max_new_tokens = n}, together[i]);
  }
  while (engine.step()) {
  }
  for (size_t i = 0; i < together.size(); ++i) EXPECT_EQ(together[i].tokens, alone[i]) << i;
}

TEST_F(OnGpu, ReportsOutOfMemory) {
  const Model model = on_gpu("models/demo");
  const std::string text = test::error_of(ErrorCode::kResource, [&] {
    Executor executor(model, Context{},
                      {.max_tokens = 32768, .max_sequences = 100000, .max_batch_tokens = 100000});
  });
  EXPECT_TRUE(test::says(text, "out of GPU memory"));
  EXPECT_TRUE(test::says(text, "dsv4 plan"));
  EXPECT_EQ(greedy(model, random_ids(9, 100, 1), 3, false).size(), 3u) << "the device still works";
  EXPECT_TRUE(test::says(test::error_of(ErrorCode::kUnsupported, [] { open_device("cuda:63"); }),
                         "no GPU cuda:63"));
}

}  // namespace
}  // namespace dsv4
