// A step may be larger than its batch (StepExtents): padding tokens, runs and list entries change
// no bit of the results of the batch or of the caches. Captured decode steps on a device depend on
// this.

#include <gtest/gtest.h>

#include "dsv4/base/rng.h"
#include "dsv4/engine/model_cache.h"
#include "tests/model/golden_files.h"

namespace dsv4 {
namespace {

constexpr int64_t kContext = 700;
constexpr int kSequences = 3;

// Sequences that advance together, one call per step.
class Stepper {
 public:
  Stepper(const Model& model, Numerics numerics)
      : model_(model),
        context_{.numerics = numerics, .workspace = &scratch_},
        cache_(model.config(), numerics,
               {.max_tokens = kContext, .max_sequences = kSequences, .max_batch_tokens = 512},
               host_memory()) {
    for (int i = 0; i < kSequences; ++i) sequences_.push_back(cache_.tables().open());
  }

  // Appends ids[i] to sequence i; returns the logits of the last token of each. [kSequences, V]
  Buffer step(const std::vector<std::vector<int32_t>>& ids, bool pad) {
    ForwardBatch batch;
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto count = static_cast<int64_t>(ids[i].size());
      EXPECT_TRUE(cache_.tables().reserve(sequences_[i], count));
      batch.runs.push_back(
          cache_.run(sequences_[i], static_cast<int64_t>(batch.ids.size()), count));
      batch.ids.insert(batch.ids.end(), ids[i].begin(), ids[i].end());
      batch.logits_rows.push_back(static_cast<int32_t>(batch.ids.size()) - 1);
    }
    StepExtents extents = step_extents(model_.cache_groups(), batch);
    if (pad) enlarge(extents);
    Buffer logits(DType::kF32, {extents.logits_rows, model_.config().vocab_size});
    const Scratch::Scope scope(scratch_);
    Step step = make_step(context_, model_.config(), model_.cache_groups(), batch, extents,
                          StepLists(scratch_), scratch_);
    model_.forward(step, cache_.layers(), logits);
    for (size_t i = 0; i < ids.size(); ++i)
      cache_.tables().commit(sequences_[i], static_cast<int64_t>(ids[i].size()));
    return logits;
  }

 private:
  void enlarge(StepExtents& extents) const {
    extents.tokens += 3, extents.runs += 2, extents.logits_rows += 2;
    for (StepExtents::Group& group : extents.groups) {
      group.closed += 4;
      group.visible += 5;
      group.pages += 3;
    }
    extents.groups[kWindowGroup].closed = extents.tokens;
    extents.groups[kWindowGroup].visible = model_.config().window;
  }

  const Model& model_;
  const Context context_;
  ModelCache cache_;
  Scratch scratch_;
  std::vector<SeqId> sequences_;
};

class PaddedStep : public testing::TestWithParam<Numerics> {};

TEST_P(PaddedStep, GivesTheSameBits) {
  const Model model = Model::load("models/demo");
  Stepper exact(model, GetParam()), padded(model, GetParam());
  Rng rng(7);
  const auto tokens = [&](int64_t n) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < n; ++i)
      ids.push_back(static_cast<int32_t>(rng.below(model.config().vocab_size)));
    return ids;
  };
  // Prompts of different lengths, then single tokens across ends of blocks of 4 and 128, then a
  // few tokens of each sequence.
  std::vector<std::vector<std::vector<int32_t>>> steps = {{tokens(250), tokens(3), tokens(126)}};
  for (int i = 0; i < 8; ++i) steps.push_back({tokens(1), tokens(1), tokens(1)});
  for (int i = 0; i < 4; ++i) steps.push_back({tokens(2 + i), tokens(8), tokens(1)});
  for (const auto& ids : steps) {
    const Buffer want = exact.step(ids, false), got = padded.step(ids, true);
    EXPECT_TRUE(test::same_bits(want, got.view().slice(0, 0, kSequences)));
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, PaddedStep, testing::Values(Numerics::kOfficial, Numerics::kExact),
                         [](const auto& mode) { return std::string(name(mode.param)); });

}  // namespace
}  // namespace dsv4
