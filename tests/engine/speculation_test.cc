// Speculation changes no answer: random requests, in random engines, with drafts that are right,
// damaged or wrong, give the tokens, the log-probabilities and the finish that they have without.
//
// DSV4_SPECULATION_TOKENS=100000 compares so many tokens for each model; DSV4_SPECULATION_SEED=N
// has other requests and engines. speculation_gpu_test runs it on a GPU.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <map>
#include <set>

#include "dsv4/base/rng.h"
#include "dsv4/engine/engine.h"
#include "dsv4/engine/request_state.h"
#include "tests/harness/random_model.h"
#include "tests/harness/temp_folder.h"
#include "tests/harness/tiny_model.h"
#include "tests/model/golden_files.h"
#if DSV4_TESTS_ON_GPU
#include "dsv4/engine/device_model.h"
#include "dsv4/plan/synthetic.h"
#include "dsv4/plan/synthetic_tensors.h"
#include "tests/harness/gpu.h"
#endif

namespace dsv4 {
namespace {

int64_t number_of(const char* variable, int64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoll(text);
}

// Every token of an answer leaves the same rest modulo `step` as the one before, except that after
// a multiple of `period` tokens one token is forced. Ends after `length` tokens.
class Rests : public TokenConstraint {
 public:
  Rests(int32_t vocab, int step, int period, int length)
      : vocab_(vocab), step_(step), period_(period), length_(length) {}

  State start() override { return 0; }
  State advance(State state, int32_t token) override {
    const State count = state / 1000 + 1;
    return count > length_ ? kEnded : count * 1000 + token % step_;
  }
  bool restricts(State state) override { return state > 0; }
  void mask(State state, std::span<uint32_t> out) override {
    std::ranges::fill(out, 0);
    const bool forced = state / 1000 % period_ == 0;
    for (auto t = static_cast<int32_t>(state % 1000); t < vocab_; t += step_) {
      out[static_cast<size_t>(t) / 32] |= uint32_t{1} << (t % 32);
      if (forced) return;
    }
  }

 private:
  const int32_t vocab_;
  const int step_, period_, length_;
};

struct Answer {
  std::vector<Sampled> tokens;
  Finish finish{};
  bool finished = false;
};

std::vector<int32_t> ids_of(const Answer& answer) {
  std::vector<int32_t> ids;
  for (const Sampled& token : answer.tokens) ids.push_back(token.id);
  return ids;
}

bool same_bits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// What differs first; empty where nothing does.
std::string difference(const Answer& a, const Answer& b) {
  const size_t common = std::min(a.tokens.size(), b.tokens.size());
  for (size_t i = 0; i < common; ++i) {
    const Sampled &x = a.tokens[i], &y = b.tokens[i];
    if (x.id != y.id || !same_bits(x.logprob, y.logprob))
      return fmt::format("token {}: {} ({:a}) and not {} ({:a})", i, x.id, x.logprob, y.id,
                         y.logprob);
    if (x.top.size() != y.top.size())
      return fmt::format("token {}: {} alternatives and not {}", i, x.top.size(), y.top.size());
    for (size_t j = 0; j < x.top.size(); ++j)
      if (x.top[j].id != y.top[j].id || !same_bits(x.top[j].logprob, y.top[j].logprob))
        return fmt::format("token {}, alternative {}: {} ({:a}) and not {} ({:a})", i, j,
                           x.top[j].id, x.top[j].logprob, y.top[j].id, y.top[j].logprob);
  }
  if (a.tokens.size() != b.tokens.size())
    return fmt::format("{} tokens and not {}", a.tokens.size(), b.tokens.size());
  return a.finish == b.finish && a.finished == b.finished ? "" : "another finish";
}

bool same(const Answer& a, const Answer& b) {
  return difference(a, b).empty();
}

// Also checks the order of events.
struct Sink : TokenSink {
  void on_start(RequestId id, int64_t cached) override {
    EXPECT_FALSE(started.contains(id));
    started.insert(id);
    hits += cached;
  }
  void on_drafts(RequestId id, const DraftCounts& counts) override {
    EXPECT_TRUE(started.contains(id) && !answers[id].finished);
    EXPECT_GT(counts.all_drafted(), 0);
    EXPECT_LE(counts.all_accepted(), counts.all_drafted());
    drafts += counts;
  }
  void on_token(RequestId id, const Sampled& token) override {
    EXPECT_TRUE(started.contains(id) && !answers[id].finished);
    answers[id].tokens.push_back(token);
    const auto cancel = cancel_after.find(id);
    if (cancel != cancel_after.end() && std::ssize(answers[id].tokens) == cancel->second)
      engine->cancel(id);
  }
  void on_stats(RequestId id, const RequestStats& cost) override {
    preemptions[id] = cost.preemptions;
  }
  void on_finish(RequestId id, Finish why) override {
    EXPECT_FALSE(answers[id].finished);
    answers[id].finished = true;
    answers[id].finish = why;
  }

  std::set<RequestId> started;
  std::map<RequestId, Answer> answers;
  std::map<RequestId, int> preemptions;
  std::map<RequestId, int64_t> cancel_after;
  Engine* engine = nullptr;
  DraftCounts drafts;
  int64_t hits = 0;
};

// Knows the answers. Damages a token with this chance.
class Script : public Drafter {
 public:
  Script(double damage, int32_t vocab) : damage_(damage), vocab_(vocab), rng_(3) {}

  std::map<RequestId, std::pair<size_t, std::vector<int32_t>>> answers;  // prompt tokens, answer

  void propose(std::span<DraftWant> wants) override {
    for (DraftWant& want : wants) {
      const auto& [prompt, answer] = answers.at(want.request->id);
      const auto begin = static_cast<int64_t>(want.tokens.size() - prompt);
      const int64_t end = std::min(begin + want.most, std::ssize(answer));
      for (int64_t i = begin; i < end; ++i) {
        const bool wrong = rng_.uniform() < damage_;
        want.drafts.push_back(wrong ? static_cast<int32_t>(rng_.below(vocab_))
                                    : answer[static_cast<size_t>(i)]);
      }
    }
  }

 private:
  const double damage_;
  const int32_t vocab_;
  Rng rng_;
};

struct Asked {
  std::vector<int32_t> prompt;
  GenerateParams params;
  int64_t cancel_after = 0;
};

struct Case {
  const char* model;
  Numerics numerics;
  int64_t tokens;  // that are compared at least
};

class SpeculationTest : public testing::TestWithParam<Case> {
 protected:
#if DSV4_TESTS_ON_GPU
  void SetUp() override {
    if (test::gpu() == nullptr) GTEST_SKIP() << "no GPU";
  }
#endif
#if DSV4_TESTS_ON_GPU
  // "flash": six layers of V4-Flash with random weights, made on the GPU.
  static Model placed(const std::string& name) {
    const std::shared_ptr<Device> gpu(test::gpu(), [](Device*){});
    Model model = name == "flash"
                      ? synthetic_model("flash", SyntheticFormats(recipe_of_flags("k3-e4m3", "")),
                                        6, 1, 0, DrafterKind::kMtp)
                      : load(name);
    if (gpu == nullptr) return model;
    if (name == "flash") {
      make_on_device(model, gpu, 3, 0,
                     {.numerics = Numerics::kOfficial, .need_batch_invariant = true});
    } else {
      move_to_device(model, gpu, [](int64_t, int64_t){});
    }
    return model;
  }
#else
  static Model placed(const std::string& name) {
    return load(name);
  }
#endif
  // With a drafter where it has one.
  static Model load(const std::string& name) {
    if (name == "random") return test::random_model(test::tiny_config(), 6, DrafterKind::kMtp);
    if (name == "dspark")
      return test::random_model(test::tiny_dspark_config(), 6, DrafterKind::kDspark);
    if (name == "demo") return Model::load("models/demo", DrafterKind::kMtp);
    return Model::load("tests/golden/hf/mixed");
  }
  Speculate random_source(Rng& rng) const {
    return rng.below(2) == 0 ? speculate_with_drafter(model_) : Speculate::kLookup;
  }
  // Drafts of a round, at most.
  int64_t most_drafts(Speculate source) const {
    return source == Speculate::kDspark ? model_.config().dspark.block_size : kMaxDrafts;
  }
  int32_t vocab() const {
    return static_cast<int32_t>(model_.config().vocab_size);
  }

  // Half of the prompts begin with a shared text, and some repeat themselves, as lookup wants it.
  Asked random_request(Rng& rng) {
    const int64_t family = rng.below(3), n = 1 + rng.below(rng.below(3) == 0 ? 300 : 30);
    Asked asked{.prompt = test::random_ids(n, vocab(), rng.below(1 << 20))};
    if (rng.below(2) == 0) {
      const std::vector<int32_t> shared =
          test::random_ids(150 + 60 * family, vocab(), static_cast<uint64_t>(family));
      asked.prompt.insert(asked.prompt.begin(), shared.begin(), shared.end());
    }
    GenerateParams& params = asked.params;
    // The longest outgrow what is set aside for them, so that requests are preempted.
    const int64_t length = rng.below(10);
    params.max_new_tokens = length == 0 ? 400 : 1 + rng.below(length < 3 ? 250 : 60);
    constexpr float kTemperatures[] = {0, 0, 0.7f, 1, 1.3f};
    params.sampling = {.temperature = kTemperatures[rng.below(5)],
                       .seed = static_cast<uint64_t>(rng.below(1 << 20))};
    if (rng.below(3) == 0) params.sampling.top_p = 0.9f;
    if (rng.below(4) == 0) params.sampling.top_k = 5;
    if (rng.below(4) == 0) params.sampling.min_p = 0.05f;
    if (rng.below(3) == 0) params.sampling.repetition_penalty = 1.3f;
    if (rng.below(4) == 0) params.sampling.frequency_penalty = 0.4f;
    if (rng.below(4) == 0) params.sampling.presence_penalty = -0.5f;
    if (rng.below(3) == 0) params.sampling.top_logprobs = 3;
    if (rng.below(6) == 0) params.sampling.processed_logprobs = true;
    if (rng.below(4) == 0) params.logit_bias = {{static_cast<int32_t>(rng.below(vocab())), 3}};
    if (rng.below(3) == 0) {
      for (int i = 0; i < 2; ++i) params.stop.push_back(static_cast<int32_t>(rng.below(vocab())));
      if (rng.below(2) == 0) params.min_new_tokens = rng.below(20);
    }
    if (rng.below(3) == 0) {
      params.constraint = std::make_shared<Rests>(vocab(), static_cast<int>(2 + rng.below(4)),
                                                  static_cast<int>(2 + rng.below(4)),
                                                  static_cast<int>(1 + rng.below(80)));
    }
    if (rng.below(8) == 0) asked.cancel_after = 1 + rng.below(10);
    if (rng.below(10) == 0) params.speculate = false;
    params.priority = static_cast<int>(rng.below(3)) - 1;
    return asked;
  }

  EngineOptions options(int64_t context) const {
    return {.numerics = GetParam().numerics, .deterministic = true, .max_tokens = context};
  }
  // Small caches, batches and checkpoints, so that all of them are met.
  EngineOptions random_options(Rng& rng, const test::TempFolder& folder) const {
    EngineOptions wild = options(kContext);
    wild.max_sequences = static_cast<int>(1 + rng.below(8));
    wild.max_batch_tokens =
        std::max<int64_t>(wild.max_sequences, 1 + rng.below(rng.below(2) == 0 ? 40 : 512));
    wild.cache_tokens = rng.below(3) == 0 ? 0 : kContext + rng.below(200);
    wild.long_prompt = 50 + rng.below(400);
    wild.prefix_checkpoints = static_cast<int>(rng.below(6));
    wild.checkpoint_interval = 128;
    wild.model_identity = GetParam().model;
    if (wild.prefix_checkpoints > 0 && rng.below(2) == 0) {
      wild.tiers.ram_bytes = (1 + rng.below(8)) << 20;
      if (rng.below(2) == 0) {
        wild.tiers.folder = folder.file("cache");
        wild.tiers.disk_bytes = int64_t{64} << 20;
      }
    }
    return wild;
  }

  // The answers, in the order of the requests.
  std::vector<Answer> run(const std::vector<Asked>& asked, const EngineOptions& options,
                          Script* script, const std::vector<Answer>& known, Sink& sink) {
    Engine engine(model_, options);
    sink.engine = &engine;
    std::vector<RequestId> ids;
    Rng rng(asked.size());
    size_t submitted = 0;
    for (int64_t step = 0;; ++step) {
      while (submitted < asked.size() && (step == 0 || rng.below(6) == 0)) {
        const Asked& one = asked[submitted];
        ids.push_back(engine.submit(one.prompt, one.params, sink));
        if (one.cancel_after > 0) sink.cancel_after[ids.back()] = one.cancel_after;
        if (script != nullptr)
          script->answers[ids.back()] = {one.prompt.size(), ids_of(known[submitted])};
        ++submitted;
      }
      if (!engine.step() && submitted == asked.size()) break;
      if (step % 7 == 0) engine.check_invariants();
    }
    engine.check_invariants();
    stats_ = engine.stats();
    EXPECT_EQ(stats_.pages_used, 0);
    std::vector<Answer> answers;
    for (const RequestId id : ids) answers.push_back(sink.answers[id]);
    return answers;
  }

  static constexpr int64_t kContext = 1000;
  const Model model_ = placed(GetParam().model);
  EngineStats stats_;
};

TEST_P(SpeculationTest, AnswersAreThoseWithout) {
  const int64_t wanted = number_of("DSV4_SPECULATION_TOKENS", GetParam().tokens);
  Rng rng(static_cast<uint64_t>(number_of("DSV4_SPECULATION_SEED", 1)));
  constexpr double kDamages[] = {0, 0.1, 0.5, 1};
  int64_t compared = 0, hits = 0, preemptions = 0;
  DraftCounts drafts;
  for (int round = 0; compared < wanted && !HasFailure(); ++round) {
    std::vector<Asked> asked;
    const int64_t n = 1 + rng.below(10);
    for (int64_t i = 0; i < n; ++i) asked.push_back(random_request(rng));
    Sink plain_sink;
    const std::vector<Answer> plain = run(asked, options(kContext), nullptr, {}, plain_sink);
    for (int i = 0; i < 3; ++i) {
      const test::TempFolder folder;
      EngineOptions wild = random_options(rng, folder);
      wild.speculate = random_source(rng);
      wild.draft_head = rng.below(2) == 0;
      wild.draft_tokens = rng.below(1 + most_drafts(wild.speculate));
      const double damage = kDamages[rng.below(4)];
      const bool scripted = wild.speculate == Speculate::kLookup && rng.below(4) > 0;
      const auto script = scripted ? std::make_shared<Script>(damage, vocab()) : nullptr;
      wild.drafter = script;
      Sink sink;
      const std::vector<Answer> answers = run(asked, wild, script.get(), plain, sink);
      for (size_t k = 0; k < asked.size(); ++k) {
        compared += std::ssize(plain[k].tokens);
        EXPECT_EQ(difference(answers[k], plain[k]), "")
            << "round " << round << ", engine " << i << ", request " << k << " of "
            << asked[k].prompt.size() << " tokens, drafts of " << wild.draft_tokens << ", damage "
            << damage << ", batches of " << wild.max_batch_tokens << ": "
            << fmt::format("{} and not {}", fmt::join(ids_of(answers[k]), " "),
                           fmt::join(ids_of(plain[k]), " "));
      }
      drafts += sink.drafts;
      hits += sink.hits;
      for (const auto& [id, count] : sink.preemptions) preemptions += count;
      const SpeculationStats& s = stats_.speculation;
      EXPECT_EQ(s.counts.all_drafted(), sink.drafts.all_drafted());
      EXPECT_EQ(s.tokens, s.rounds + s.counts.all_accepted());
    }
  }
  const int64_t forced = drafts.accepted[static_cast<size_t>(DraftSource::kGrammar)];
  fmt::print(
      "{} tokens compared; {} of {} drafts accepted, {} of them forced; {} tokens of stored "
      "prefixes, {} preemptions\n",
      compared, drafts.all_accepted(), drafts.all_drafted(), forced, hits, preemptions);
  if (wanted < 20000) return;
  // All that can go wrong has been met.
  EXPECT_GT(drafts.all_accepted(), 100);
  EXPECT_LT(drafts.all_accepted() + 100, drafts.all_drafted());
  EXPECT_GT(forced, 0);
  EXPECT_GT(drafts.drafted[static_cast<size_t>(DraftSource::kLookup)], 0);
  EXPECT_GT(hits, 0);
}

// Two requests fit the cache at first, and outgrow it.
TEST_P(SpeculationTest, PreemptedAnswersAreThoseWithout) {
  std::vector<Asked> asked;
  for (uint64_t i = 0; i < 3; ++i)
    asked.push_back(
        {.prompt = test::random_ids(100, vocab(), i),
         .params = {.sampling = {.temperature = 0.9f, .seed = i}, .max_new_tokens = 480}});
  Sink plain_sink;
  const std::vector<Answer> plain = run(asked, options(kContext), nullptr, {}, plain_sink);
  EngineOptions on = options(kContext);
  on.max_sequences = 3;
  on.cache_tokens = kContext;
  on.prefix_checkpoints = 2;
  on.draft_tokens = 3;
  for (const bool own : {false, true}) {
    on.speculate = own ? speculate_with_drafter(model_) : Speculate::kLookup;
    if (own && on.speculate == Speculate::kLookup) continue;
    const auto script = own ? nullptr : std::make_shared<Script>(0.3, vocab());
    on.drafter = script;
    Sink sink;
    const std::vector<Answer> answers = run(asked, on, script.get(), plain, sink);
    for (size_t i = 0; i < asked.size(); ++i)
      EXPECT_TRUE(same(answers[i], plain[i])) << i << (own ? " with its drafter" : "");
    EXPECT_GT(stats_.preemptions, 0);
    EXPECT_GT(sink.drafts.drafted[static_cast<size_t>(DraftSource::kDrafter)], 0);
  }
}

// A round may go over a multiple of 128 tokens, where a checkpoint is made, with every number of
// drafts before and after it, of which some hold. A request that goes on with the answer begins
// with that checkpoint.
TEST_P(SpeculationTest, CheckpointsOfAnswersLieBetweenAcceptedTokens) {
  int64_t hits = 0;
  for (int64_t k = 1; k <= kMaxDrafts; ++k) {
    for (int64_t before = 1; before <= 8; ++before) {
      const Asked first{
          .prompt = test::random_ids(125 - before, vocab(), static_cast<uint64_t>(k)),
          .params = {.sampling = {.temperature = 0.8f, .seed = 5}, .max_new_tokens = 24}};
      Sink plain_sink;
      const std::vector<Answer> plain = run({first}, options(kContext), nullptr, {}, plain_sink);
      EngineOptions on = options(kContext);
      on.prefix_checkpoints = 4;
      on.speculate = Speculate::kLookup;
      on.draft_tokens = k;
      const auto script = std::make_shared<Script>(0.2, vocab());
      on.drafter = script;
      Engine engine(model_, on);
      Sink sink;
      const auto finish = [&](const Asked& asked, const std::vector<int32_t>& answer) {
        const RequestId id = engine.submit(asked.prompt, asked.params, sink);
        script->answers[id] = {asked.prompt.size(), answer};
        while (engine.step()) engine.check_invariants();
        return sink.answers[id];
      };
      EXPECT_TRUE(same(finish(first, ids_of(plain[0])), plain[0])) << k << " drafts, " << before;
      Asked second = first;
      for (const Sampled& token : plain[0].tokens) second.prompt.push_back(token.id);
      second.prompt.push_back(3);
      Sink alone_sink;
      const std::vector<Answer> alone = run({second}, options(kContext), nullptr, {}, alone_sink);
      const int64_t hits_before = sink.hits;
      EXPECT_TRUE(same(finish(second, ids_of(alone[0])), alone[0])) << k << " drafts, " << before;
      EXPECT_EQ(sink.hits - hits_before, 128) << k << " drafts, " << before;
      hits += sink.hits;
    }
    if (k == 2 && GetParam().tokens < 20000) return;  // the others take long
  }
  EXPECT_EQ(hits, 128 * 7 * 8);
}

// An answer that is foretold takes an eighth of the steps, and one that is foretold wrongly no more
// than without.
TEST_P(SpeculationTest, APredictionSparesSteps) {
  const std::vector<int32_t> prompt = test::random_ids(20, vocab(), 8);
  GenerateParams params{.sampling = {.temperature = 1, .seed = 4}, .max_new_tokens = 96};
  Sink plain_sink;
  const std::vector<Answer> plain =
      run({{prompt, params}}, options(kContext), nullptr, {}, plain_sink);
  const int64_t plain_steps = stats_.steps;
  EngineOptions on = options(kContext);
  on.speculate = Speculate::kLookup;
  on.draft_tokens = kMaxDrafts;
  for (const bool right : {true, false}) {
    params.prediction = right ? ids_of(plain[0]) : test::random_ids(96, vocab(), 77);
    Sink sink;
    EXPECT_TRUE(same(run({{prompt, params}}, on, nullptr, {}, sink)[0], plain[0]));
    EXPECT_LE(stats_.steps, right ? plain_steps / 8 + 2 : plain_steps);
    const auto source = static_cast<size_t>(DraftSource::kPrediction);
    if (right) {
      EXPECT_EQ(sink.drafts.accepted[source], sink.drafts.drafted[source]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SpeculationTest,
                         testing::Values(
#if DSV4_TESTS_ON_GPU
                             Case{"flash", Numerics::kOfficial, 2000},
#endif
                             Case{"random", Numerics::kOfficial, 8000},
                             Case{"dspark", Numerics::kOfficial, 4000},
                             Case{"mixed", Numerics::kExact, 40000},
                             Case{"demo", Numerics::kOfficial, 4000}),
                         [](const auto& one) { return std::string(one.param.model); });

}  // namespace
}  // namespace dsv4
