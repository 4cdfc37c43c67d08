// A step over several ranks gives the bits of one rank: logits, and the caches of every rank. Ranks
// are threads; their number need not divide anything, so some own no head, no expert row or no
// expert. Both placements of the experts.

#include <gtest/gtest.h>
#include <omp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "dsv4/engine/executor.h"
#include "tests/harness/errors.h"
#include "tests/harness/random_model.h"
#include "tests/harness/tiny_model.h"
#include "tests/model/golden_files.h"
#include "tests/model/random_batches.h"
#include "tests/model/rank_bytes.h"

namespace dsv4 {
namespace {

using test::append;
using test::Bytes;
using test::caches_of;
using test::random_ids;

constexpr auto kSliced = ExpertsPlacement::kSliced, kWhole = ExpertsPlacement::kWhole;

// V4-Pro's kinds of layers and its 16 groups of heads. Eight ranks have two groups each, as of Pro,
// and one block of the experts' width, of which Pro has three; some have more than others of the
// seven blocks of the hidden size, the 12 experts and the six blocks of the vocabulary.
ModelConfig wide_pro_config() {
  auto json = nlohmann::json::parse(released_config_json("pro"));
  json.update(nlohmann::json::parse(R"({
    "hidden_size": 896, "num_hidden_layers": 2, "compress_ratios": [128, 4, 0],
    "num_hash_layers": 1, "vocab_size": 700, "num_attention_heads": 16, "head_dim": 128,
    "q_lora_rank": 128, "o_groups": 16, "o_lora_rank": 128, "sliding_window": 48,
    "index_n_heads": 2, "index_head_dim": 64, "index_topk": 32, "n_routed_experts": 12,
    "num_experts_per_tok": 6, "moe_intermediate_size": 1024})"));
  return parse_config(json.dump(), "wide pro config");
}

std::shared_ptr<const ModelSpec> spec_of(const std::string& name, ExpertsPlacement placement) {
  const auto random = [&](const ModelConfig& config, uint64_t seed) {
    return test::random_model(config, seed, DrafterKind::kNone, placement).shared_spec();
  };
  if (name == "random flash") return random(test::tiny_config(), 3);
  if (name == "random pro") return random(test::small_pro_config(), 4);
  if (name == "wide pro") return random(wide_pro_config(), 5);
  return ModelSpec::load(name, placement);
}

// What a run leaves behind.
struct Trace {
  Bytes logits;                   // of every token
  std::vector<Bytes> caches;      // [world]: all pools and states
  std::vector<int64_t> received;  // [world]: bytes of other ranks
};

std::vector<int64_t> received_by(Executor& executor) {
  std::vector<int64_t> bytes;
  for (const RankStats& stats : executor.runner().rank_stats())
    bytes.push_back(stats.received_bytes);
  return bytes;
}

// One sequence in chunks.
Trace run_chunks(const Model& model, Numerics numerics, int64_t tokens, int64_t chunk) {
  const std::vector<int32_t> ids = random_ids(tokens, model.config().vocab_size, 1);
  Executor executor(model, {.numerics = numerics},
                    {.max_tokens = tokens, .max_batch_tokens = chunk, .max_logits_rows = chunk});
  const SeqId seq = executor.cache().open();
  Trace trace;
  for (int64_t first = 0; first < tokens; first += chunk) {
    const auto count = static_cast<size_t>(std::min(chunk, tokens - first));
    const Work work{seq, std::span(ids).subspan(static_cast<size_t>(first), count),
                    Work::Logits::kAll};
    const ConstTensorView logits = executor.run({&work, 1});
    append(trace.logits, logits.data, logits.bytes());
  }
  trace.caches = caches_of(executor);
  trace.received = received_by(executor);
  return trace;
}

// Three sequences that advance together by random amounts, with logits of some of the tokens.
Trace run_batch(const Model& model, Numerics numerics) {
  const int64_t vocab = model.config().vocab_size;
  const std::vector<std::vector<int32_t>> ids = {
      random_ids(170, vocab, 2), random_ids(290, vocab, 3), random_ids(33, vocab, 4)};
  Executor executor(model, {.numerics = numerics},
                    {.max_tokens = 300, .max_sequences = 3, .max_batch_tokens = 200});
  std::vector<SeqId> seqs;
  for (size_t i = 0; i < ids.size(); ++i) seqs.push_back(executor.cache().open());
  Rng rng(5);
  std::vector<size_t> done(ids.size(), 0);
  Trace trace;
  for (bool goes_on = true; goes_on;) {
    std::vector<Work> work;
    for (size_t i = 0; i < ids.size(); ++i) {
      const size_t left = ids[i].size() - done[i];
      if (left == 0) continue;
      const auto count =
          std::min<size_t>(left, rng.below(2) == 0 ? 1 : static_cast<size_t>(1 + rng.below(60)));
      const auto logits = static_cast<Work::Logits>(rng.below(3));
      work.push_back({seqs[i], std::span(ids[i]).subspan(done[i], count), logits});
      done[i] += count;
    }
    goes_on = !work.empty();
    if (!goes_on) break;
    const ConstTensorView logits = executor.run(work);
    append(trace.logits, logits.data, logits.bytes());
  }
  trace.caches = caches_of(executor);
  return trace;
}

void expect_same(const Trace& got, const Trace& want, const std::string& what) {
  EXPECT_TRUE(got.logits == want.logits) << what << ": logits";
  for (size_t rank = 0; rank < got.caches.size(); ++rank)
    EXPECT_TRUE(got.caches[rank] == want.caches.front()) << what << ": caches of rank " << rank;
}

struct Case {
  const char* model;
  Numerics numerics;
  ExpertsPlacement placement = kSliced;
};
std::string case_name(const testing::TestParamInfo<Case>& info) {
  std::string text = std::string(info.param.model) + "_" + name(info.param.numerics);
  if (info.param.placement == kWhole) text += "_whole";
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '/' || c == ' '; }, '_');
  return text;
}

class Ranks : public testing::TestWithParam<Case> {
 protected:
  std::shared_ptr<const ModelSpec> spec_ = spec_of(GetParam().model, GetParam().placement);
};

#ifdef DSV4_SANITIZED
const std::vector<int> kWorlds = {3}, kWide = {8};  // steps take ten times as long
#else
const std::vector<int> kWorlds = {2, 3, 4, 5}, kWide = {4, 8};
#endif

TEST_P(Ranks, GiveTheBitsOfOneRank) {
  const Numerics numerics = GetParam().numerics;
  const auto run_all = [&](int world, const auto& use) {
    Model model = ModelShard::of_ranks(spec_, world);
    use("whole", run_chunks(model, numerics, 300, 300));
    // Picks by shares of the tokens, where a step has more than 16.
    model.share_steps_from(1);
    use("shares", run_chunks(model, numerics, 300, 300));
    use("shares of 33", run_chunks(model, numerics, 181, 33));
    use("batch", run_batch(model, numerics));
    if (world <= 3) use("in sevens", run_chunks(model, numerics, 280, 7));
    if (world != 3) use("token by token", run_chunks(model, numerics, 40, 1));
  };
  std::map<std::string, Trace> want;
  run_all(1, [&](const char* what, Trace trace) { want[what] = std::move(trace); });
  ASSERT_GT(want["whole"].logits.size(), 0u);
  for (const int world : GetParam().model == std::string("wide pro") ? kWide : kWorlds) {
    run_all(world, [&](const char* what, const Trace& got) {
      expect_same(got, want[what], fmt::format("{} ranks, {}", world, what));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Ranks,
                         testing::Values(Case{"models/demo", Numerics::kOfficial},
                                         Case{"models/demo", Numerics::kExact},
                                         Case{"random flash", Numerics::kOfficial},
                                         Case{"random pro", Numerics::kOfficial},
                                         Case{"random pro", Numerics::kExact},
                                         Case{"tests/golden/hf/mixed", Numerics::kExact},
                                         Case{"tests/golden/hf/pro", Numerics::kExact},
                                         Case{"models/demo", Numerics::kOfficial, kWhole},
                                         Case{"models/demo", Numerics::kExact, kWhole},
                                         Case{"random flash", Numerics::kOfficial, kWhole},
                                         Case{"random pro", Numerics::kOfficial, kWhole},
                                         Case{"random pro", Numerics::kExact, kWhole},
                                         Case{"wide pro", Numerics::kOfficial},
                                         Case{"wide pro", Numerics::kOfficial, kWhole},
                                         Case{"tests/golden/hf/mixed", Numerics::kExact, kWhole}),
                         case_name);

// More ranks than groups of heads, two and five, or than experts, eight and five.
TEST(RanksRun, AnyNumberOfRanks) {
  const auto expect_bits = [](const char* model, std::initializer_list<int> worlds) {
    const Trace want =
        run_chunks(ModelShard::of_ranks(spec_of(model, kSliced), 1), Numerics::kOfficial, 60, 20);
    for (const ExpertsPlacement placement : {kSliced, kWhole}) {
      for (const int world : worlds)
        expect_same(run_chunks(ModelShard::of_ranks(spec_of(model, placement), world),
                               Numerics::kOfficial, 60, 20),
                    want, fmt::format("{} on {} ranks, {}", model, world, name(placement)));
    }
  };
  expect_bits("models/demo", {6, 7, 8});
  expect_bits("random pro", {6, 7, 8});
}

// As ranks_gpu_test does for 20,000 steps.
TEST(RanksRun, DigestsOfHundredsOfSteps) {
  const auto run = [](int world) {
    const Model model = Model::load("models/demo", world);
    test::RandomBatches batches(model, {});
    return test::run_hundreds(batches, 1, std::chrono::hours(1),
                              [&] { return caches_of(batches.executor()); });
  };
  const test::Digests one = run(1), two = run(2);
  ASSERT_EQ(one.logits.size(), 1u);
  EXPECT_EQ(two.logits, one.logits);
  EXPECT_EQ(two.caches[0], std::vector<Digest>(2, one.caches[0][0]));
}

// The bytes of a step with shares, less those of one without: each rank gets the picks of the
// others' tokens, 64 of 4 bytes for each token and layer with an indexer, and of others' columns of
// u codes and scales instead of bf16. 300 tokens of the demo are 19 units of 16.
TEST(RanksRun, PicksAndCodesOfOthersAreReceived) {
  const auto spec = ModelSpec::load("models/demo");
  const ModelConfig& m = spec->config();
  const auto indexed = std::ranges::count(spec->schedule(), LayerKind::kCsa, &LayerSpec::kind);
  ASSERT_GT(indexed, 0);
  const std::map<int, std::vector<int64_t>> own = {
      {2, {144, 156}}, {3, {96, 96, 108}}, {5, {48, 64, 64, 64, 60}}};
  for (const auto& [world, tokens] : own) {
    Model model = ModelShard::of_ranks(spec, world);
    const Trace all = run_chunks(model, Numerics::kOfficial, 300, 300);
    model.share_steps_from(300);
    const Trace shares = run_chunks(model, Numerics::kOfficial, 300, 300);
    model.share_steps_from(301);
    EXPECT_EQ(run_chunks(model, Numerics::kOfficial, 300, 300).received, all.received);
    for (size_t rank = 0; rank < tokens.size(); ++rank) {
      const ShardId id{static_cast<int>(rank), world};
      const int64_t picks = indexed * (300 - tokens[rank]) * m.index_topk * 4;
      const int64_t blocks =
          (m.o_groups - id.rows(m.o_groups, 1).count()) * m.o_lora_rank / 128 * m.num_layers;
      EXPECT_EQ(shares.received[rank] - all.received[rank],
                picks + 300 * blocks * (128 + 1 - 2 * 128))
          << rank << " of " << world;
    }
    expect_same(shares, all, fmt::format("{} ranks", world));
  }
}

// At the number of tokens from which on ranks share by themselves, and one below it.
TEST(RanksRun, SharesOfALongPrompt) {
  const auto spec = spec_of("random pro", kSliced);
  const int64_t least = ModelShard::of_ranks(spec, 1).least_shared_tokens();
  for (const int64_t chunk : {least - 1, least}) {
    const auto run = [&](int world) {
      return run_chunks(ModelShard::of_ranks(spec, world), Numerics::kOfficial, least + 20, chunk);
    };
    const Trace want = run(1);
    for (const int world : {2, 3})
      expect_same(run(world), want, fmt::format("chunks of {}", chunk));
  }
}

// Bits do not depend on the threads of each rank either.
TEST(RanksRun, DoNotDependOnThreads) {
  const auto spec = ModelSpec::load("models/demo");
  const Model one = ModelShard::of_ranks(spec, 1), three = ModelShard::of_ranks(spec, 3);
  const Trace want = run_chunks(one, Numerics::kOfficial, 150, 150);
  const int before = omp_get_max_threads();
  for (const int threads : {3, 6}) {
    omp_set_num_threads(threads);
    expect_same(run_chunks(three, Numerics::kOfficial, 150, 150), want, "threads");
  }
  omp_set_num_threads(before);
}

// The pages of a file that no row of a rank reaches are taken away before the rank's model is
// loaded from them: reading one would end the program.
class PagesOfOthers {
 public:
  PagesOfOthers(const Checkpoint& checkpoint, const std::vector<ConstTensorView>& own) {
    page_ = sysconf(_SC_PAGESIZE);
    std::map<uintptr_t, uintptr_t> keep;  // begin -> end, whole pages
    for (const ConstTensorView& view : own) {
      const auto begin = reinterpret_cast<uintptr_t>(view.data);
      if (view.bytes() > 0) add(keep, begin, begin + static_cast<uintptr_t>(view.bytes()));
    }
    for (const auto& [name, tensor] : checkpoint.tensors()) {
      const auto begin = reinterpret_cast<uintptr_t>(tensor.view.data);
      take(keep, begin, begin + static_cast<uintptr_t>(tensor.view.bytes()));
    }
  }
  int64_t taken() const { return taken_; }

 private:
  uintptr_t down(uintptr_t at) const { return at / page_ * page_; }
  uintptr_t up(uintptr_t at) const { return down(at + page_ - 1); }
  void add(std::map<uintptr_t, uintptr_t>& keep, uintptr_t begin, uintptr_t end) const {
    for (uintptr_t page = down(begin); page < up(end); page += page_) keep[page] = page + page_;
  }
  void take(const std::map<uintptr_t, uintptr_t>& keep, uintptr_t begin, uintptr_t end) {
    for (uintptr_t page = up(begin); page + page_ <= end; page += page_) {
      if (keep.count(page) != 0) continue;
      if (mprotect(reinterpret_cast<void*>(page), page_, PROT_NONE) == 0)
        taken_ += static_cast<int64_t>(page_);
    }
  }

  uintptr_t page_ = 0;
  int64_t taken_ = 0;
};

std::vector<ConstTensorView> tensors_of(ModelShard& shard) {
  std::vector<ConstTensorView> views;
  shard.for_each_tensor([&](const ConstTensorView& view) { views.push_back(view); });
  return views;
}

void check_own_bytes(ExpertsPlacement placement) {
  SCOPED_TRACE(name(placement));
  for (const int world : {2, 3}) {
    std::vector<std::shared_ptr<ModelShard>> shards;
    for (int rank = 0; rank < world; ++rank) {
      const auto spec = ModelSpec::load("models/demo", placement);  // a mapping of its own
      ModelShard first(spec, {rank, world});
      const std::vector<ConstTensorView> own = tensors_of(first);
      int64_t all = 0, bytes = 0;
      for (const auto& [name, tensor] : spec->checkpoint().tensors()) all += tensor.view.bytes();
      for (const ConstTensorView& view : own) bytes += view.bytes();
      const PagesOfOthers others(spec->checkpoint(), own);
      // The others keep a page at most at each edge of their rows.
      EXPECT_GT(others.taken(), (all - bytes) * 4 / 5) << rank << " of " << world;
      EXPECT_LT(bytes, all * 7 / 10);
      shards.push_back(std::make_shared<ModelShard>(spec, ShardId{rank, world}));
    }
    // And steps read no more than loading does.
    const Model one = Model::load("models/demo");
    const Trace want = run_chunks(one, Numerics::kOfficial, 150, 150);
    Model leader(shards.front()->shared_spec(), {0, world});
    leader.lead({shards.begin() + 1, shards.end()});
    expect_same(run_chunks(leader, Numerics::kOfficial, 150, 150), want, "with own pages alone");
  }
}

TEST(RanksLoad, ARankReadsItsOwnBytesAlone) {
  for (const ExpertsPlacement placement : {kSliced, kWhole}) check_own_bytes(placement);
}

// Experts of 2 of 8 on one rank and 3 on each of two: the whole of w1, w3 and w2, and no part of
// others. w2 of the shared expert is on every rank.
TEST(RanksLoad, WholeExpertsAreDealtOut) {
  const Model first = Model::load("models/demo", 3, kWhole);
  std::vector<const ModelShard*> shards = {&first};
  for (const auto& shard : first.others()) shards.push_back(shard.get());
  const Model one = Model::load("models/demo");
  const std::vector<std::pair<int64_t, int64_t>> want = {{0, 2}, {2, 5}, {5, 8}};
  for (size_t rank = 0; rank < shards.size(); ++rank) {
    for (size_t l = 0; l < one.weights().layers.size(); ++l) {
      const MoeWeights& block = shards[rank]->weights().layers[l].moe;
      const MoeWeights& all = one.weights().layers[l].moe;
      ASSERT_TRUE(block.own.has_value());
      EXPECT_EQ(std::pair(block.own->begin, block.own->end), want[rank]);
      EXPECT_EQ(block.stack().num_ids(), 8);
      for (int64_t e = 0; e < 8; ++e) {
        const ExpertWeights& expert = block.routed[static_cast<size_t>(e)];
        const bool own = block.stack().has_id(e);
        for (const auto w : {&ExpertWeights::w1, &ExpertWeights::w3, &ExpertWeights::w2}) {
          EXPECT_EQ((expert.*w).n, (all.routed[static_cast<size_t>(e)].*w).n);
          EXPECT_EQ((expert.*w).data.empty(), !own) << e;
          EXPECT_EQ((expert.*w).scale.empty(), !own) << e;
        }
      }
      EXPECT_EQ(block.shared[0].w2.n, all.shared[0].w2.n);
      EXPECT_LT(block.shared[0].w1.n, all.shared[0].w1.n);
    }
  }
}

// A fault of one rank ends the step with one line, and steps after it too.
std::string fault(int world, std::chrono::milliseconds limit,
                  const std::function<void(ShardId, int64_t)>& before_step) {
  const Model model = Model::load("models/demo", world);
  const std::vector<int32_t> ids = random_ids(40, model.config().vocab_size, 1);
  Executor executor(model, {}, {.max_tokens = 40, .max_batch_tokens = 8},
                    {.limit = limit, .before_step = before_step});
  const SeqId seq = executor.cache().open();
  std::chrono::steady_clock::time_point begin;
  std::string text;
  for (size_t first = 0; first < ids.size() && text.empty(); first += 8) {
    begin = std::chrono::steady_clock::now();
    try {
      const Work work{seq, std::span(ids).subspan(first, 8), Work::Logits::kLast};
      executor.run({&work, 1});
    } catch (const Error& error) {
      text = error.what();
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
  EXPECT_EQ(text.find('\n'), text.npos);
  return text;
}

TEST(RanksFault, ARankThatThrowsEndsAll) {
  EXPECT_EQ(fault(3, std::chrono::seconds(20),
                  [](ShardId id, int64_t step) {
                    if (id.rank == 2 && step == 3) fail(ErrorCode::kResource, "no memory left");
                  }),
            "rank 2: no memory left");
}

TEST(RanksFault, ARankThatStallsEndsAll) {
  EXPECT_EQ(fault(4, std::chrono::milliseconds(200),
                  [](ShardId id, int64_t step) {
                    if (id.rank == 1 && step == 2) {
                      std::this_thread::sleep_for(std::chrono::hours(1));  // until the test ends
                    }
                  }),
            "no answer from rank 1 for 0.2 s (embedding)");
}

TEST(RanksLoad, AFormatThatCannotBeDividedIsNamed) {
  auto json = nlohmann::json::parse(test::tiny_config_json());
  json["num_attention_heads"] = 4, json["head_dim"] = 64, json["o_groups"] = 4;
  json["o_lora_rank"] = 128;
  const auto spec = test::random_model(parse_config(json.dump(), "narrow groups"), 1).shared_spec();
  const std::string text =
      test::error_of(ErrorCode::kUnsupported, [&] { ModelShard::of_ranks(spec, 2); });
  EXPECT_NE(text.find("attn.wq_b: ranks divide it by 64 rows"), text.npos) << text;
}

}  // namespace
}  // namespace dsv4
