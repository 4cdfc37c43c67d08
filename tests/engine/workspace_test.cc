// The planned workspace compared with real forward steps: never exceeded, and reached by a step
// that is as large as the limits allow.

#include "dsv4/engine/workspace.h"

#include <gtest/gtest.h>

#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#endif
#include "dsv4/engine/executor.h"
#include "dsv4/model/ranks.h"
#include "tests/harness/tiny_model.h"

namespace dsv4 {
namespace {

struct Case {
  Numerics numerics;
  CacheLimits limits;
};

// Advances the sequences of one executor.
class Feeder {
 public:
  Feeder(const Model& model, const Case& c)
      : model_(model),
        executor_(model_, Context{.numerics = c.numerics}, c.limits),
        plan_(plan_workspace(model_, {.numerics = c.numerics}, c.limits, 1)) {
    for (int i = 0; i < c.limits.max_sequences; ++i) sequences_.push_back(executor_.cache().open());
  }

  // One step: counts[i] further tokens of sequence i.
  void step(const std::vector<int64_t>& counts) {
    std::vector<std::vector<int32_t>> ids(counts.size());
    std::vector<Work> work;
    const bool all = executor_.limits().max_logits_rows > 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      for (int64_t j = 0; j < counts[i]; ++j)
        ids[i].push_back(static_cast<int32_t>(rng_.below(model_.config().vocab_size)));
      if (counts[i] > 0)
        work.push_back({sequences_[i], ids[i], all ? Work::Logits::kAll : Work::Logits::kLast});
    }
    executor_.run(work);
    ASSERT_EQ(executor_.scratch().reserved_bytes(), plan_.step) << "a step needed more";
  }

  int64_t peak() const { return executor_.scratch().peak_bytes(); }
  const Workspace& plan() const { return plan_; }
  Rng& rng() { return rng_; }

 private:
  const Model& model_;
  Executor executor_;
  Workspace plan_;
  std::vector<SeqId> sequences_;
  Rng rng_{11};
};

std::string label(const Case& c) {
  return fmt::format("{} tokens={} sequences={} batch={} rows={}", name(c.numerics),
                     c.limits.max_tokens, c.limits.max_sequences, c.limits.max_batch_tokens,
                     c.limits.max_logits_rows);
}

class WorkspacePlan : public testing::Test {
 protected:
  static Model make(const test::TempFolder& folder) {
    test::write_zero_model(folder, official_tensor_list(test::tiny_config(), false));
    return Model::load(folder.path());
  }
  test::TempFolder folder_;
  Model model_ = make(folder_);
};

// Brings all sequences to `context` tokens; the last step is as large as possible: one sequence
// uses the tokens that remain after one token for each of the others.
void reach(Feeder& feeder, const CacheLimits& limits, int64_t context,
           std::vector<int64_t>& lengths) {
  std::vector<int64_t> last(lengths.size(), 1);
  last[0] = std::min(limits.max_batch_tokens - limits.max_sequences + 1, context - lengths[0]);
  for (size_t i = 0; i < last.size(); ++i) {
    while (lengths[i] < context - last[i]) {
      std::vector<int64_t> counts(last.size(), 0);
      counts[i] = std::min(context - last[i] - lengths[i], limits.max_batch_tokens);
      feeder.step(counts);
      lengths[i] += counts[i];
    }
    lengths[i] += last[i];
  }
  feeder.step(last);
}

// Steps at every limit: contexts end on a block of 128, and the long run has one token more than a
// multiple of the block, so that it closes one entry more than its length suggests. With a context
// of 128 tokens the indexer of this model may select every entry, with 256 it may not.
TEST_F(WorkspacePlan, IsReachedByTheLargestStep) {
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
    for (const int64_t context : {128, 256}) {
      for (const CacheLimits& limits :
           {CacheLimits{context, 1, 1}, CacheLimits{context, 1, 65},
            CacheLimits{context, 3, 67, 67}, CacheLimits{context, 5, 5}}) {
        const Case c{numerics, limits};
        SCOPED_TRACE(label(c));
        Feeder feeder(model_, c);
        std::vector<int64_t> lengths(static_cast<size_t>(limits.max_sequences), 0);
        reach(feeder, limits, 4 * model_.config().index_topk, lengths);
        if (context > lengths[0]) reach(feeder, limits, context, lengths);
        EXPECT_EQ(feeder.peak(), feeder.plan().step);
      }
    }
  }
}

// Random batches of the kind that an engine makes.
TEST_F(WorkspacePlan, IsNeverExceeded) {
  Rng pick(20261121);
  for (int round = 0; round < 8; ++round) {
    Case c{.numerics = pick.below(2) == 0 ? Numerics::kOfficial : Numerics::kExact};
    c.limits.max_tokens = 1 + pick.below(400);
    c.limits.max_sequences = static_cast<int>(1 + pick.below(4));
    c.limits.max_batch_tokens = c.limits.max_sequences + pick.below(200);
    c.limits.max_logits_rows = pick.below(2) * c.limits.max_batch_tokens;
    SCOPED_TRACE(label(c));
    Feeder feeder(model_, c);
    std::vector<int64_t> left(static_cast<size_t>(c.limits.max_sequences), c.limits.max_tokens);
    while (*std::max_element(left.begin(), left.end()) > 0) {
      int64_t budget = c.limits.max_batch_tokens;
      std::vector<int64_t> counts;
      for (int64_t& rest : left) {
        counts.push_back(std::min(rest, pick.below(budget + 1)));
        budget -= counts.back();
        rest -= counts.back();
      }
      if (budget < c.limits.max_batch_tokens) feeder.step(counts);
    }
    EXPECT_LE(feeder.peak(), feeder.plan().step);
  }
}

// V4-Flash, of which nothing is read.
std::shared_ptr<const ModelSpec> flash_spec() {
  const ModelConfig config = released_config("flash");
  std::map<std::string, TensorMeta> tensors;
  for (const NamedTensor& tensor : official_tensor_list(config, false))
    tensors.emplace(tensor.name, tensor.meta);
  return std::make_shared<const ModelSpec>(config, Checkpoint::shapes("flash", tensors));
}

// A rank has less to compute in a step whose tokens are shared out than in one of a few tokens
// less, and its share may shrink when a unit is added. Its memory suffices for all.
TEST_F(WorkspacePlan, OfARankSufficesForSmallerSteps) {
  const std::shared_ptr<const ModelSpec> spec = flash_spec();
  std::vector<Context> contexts = {{}};
#if DSV4_CUDA
  const std::unique_ptr<Device> hopper = Device::dry_run({.name = "H", .major = 9, .num_sms = 132});
  contexts.push_back({.device = hopper.get()});
#endif
  for (const Context& context : contexts) {
    const auto check = [&](ModelShard& rank, int64_t context_tokens,
                           std::initializer_list<int64_t> steps) {
      Workspace before;
      for (const int64_t tokens : steps) {
        const Workspace plan = plan_workspace(
            rank, context,
            {.max_tokens = context_tokens, .max_sequences = 2, .max_batch_tokens = tokens}, 1);
        EXPECT_GE(plan.step, before.step) << tokens << " tokens on " << rank.id().world << " ranks";
        EXPECT_GE(plan.kernels, before.kernels)
            << tokens << " tokens on " << rank.id().world << " ranks";
        before = plan;
      }
    };
    for (const int world : {2, 8, 16}) {
      ModelShard rank(spec, {1, world});
      check(rank, 100'000, {kLeastSharedTokens - 1, kLeastSharedTokens, 700});
    }
    ModelShard third(spec, {2, 5});  // of 37 units it has 8, of 38 units 7
    third.share_steps_from(1);
    check(third, 480'000, {592, 595, 608});
  }
}

// The plan needs no weights, so it can use the released dims.
TEST_F(WorkspacePlan, GrowsWithEveryLimit) {
  const Model flash(flash_spec());
  const CacheLimits base{.max_tokens = 4096, .max_sequences = 4, .max_batch_tokens = 256};
  const int64_t least = plan_workspace(flash, {}, base, 2).total();
  const auto total = [&](int64_t tokens, int sequences, int64_t batch, int64_t rows, int threads) {
    return plan_workspace(flash, {}, {tokens, sequences, batch, rows}, threads).total();
  };
  EXPECT_GT(total(1 << 20, 4, 256, 0, 2), least);
  EXPECT_GT(total(4096, 8, 256, 0, 2), least);
  EXPECT_GT(total(4096, 4, 512, 0, 2), least);
  EXPECT_GT(total(4096, 4, 256, 256, 2), least);
  EXPECT_GT(total(4096, 4, 256, 0, 4), least);
}

}  // namespace
}  // namespace dsv4
