// A step may be larger than its batch (StepExtents): padding tokens, runs and list entries change
// no bit of the results of the batch or of the caches. Captured decode steps on a device depend on
// this. And no step changes the keys of entries that it calls settled, which kernels read early.

#include <gtest/gtest.h>

#include "dsv4/base/rng.h"
#include "dsv4/engine/model_cache.h"
#include "tests/model/golden_files.h"

namespace dsv4 {
namespace {

constexpr int64_t kContext = 700;
constexpr int kSequences = 3;

// The index keys of the entries that are settled in a step, of all layers.
class SettledKeys {
 public:
  SettledKeys(const Model& model, const Step& step, std::span<const LayerCache> caches) {
    for (size_t l = 0; l < caches.size(); ++l) {
      if (caches[l].keys.empty()) continue;
      const EntryLists& lists = step.groups[static_cast<size_t>(model.schedule()[l].group)];
      for (int64_t t = 0; t < step.num_tokens; ++t) add(caches[l].keys, lists, step.sequence, t);
    }
    for (const ConstTensorView& key : keys_) before_.push_back(bytes(key));
  }
  void expect_unchanged() const {
    for (size_t i = 0; i < keys_.size(); ++i) EXPECT_EQ(bytes(keys_[i]), before_[i]);
  }
  size_t count() const { return keys_.size(); }

 private:
  void add(const IndexPool& pool, const EntryLists& lists, const ConstTensorView& sequence,
           int64_t t) {
    const int32_t settled = lists.settled.as<int32_t>()[t];
    EXPECT_LE(settled, lists.visible.as<int32_t>()[t]);
    const auto* pages = lists.pages.row<int32_t>(sequence.as<int32_t>()[t]);
    for (int32_t s = 0; s < settled; ++s) {
      const int64_t page = pages[s / pool.page_entries], entry = s % pool.page_entries;
      const std::byte* from = pool.pages.slice(0, page, page + 1).data;
      const auto view = [&](int64_t at, int64_t size) {
        keys_.push_back({TensorMeta::contiguous(DType::kU8, {size}), from + at});
      };
      if (pool.packed()) {
        view(pool.layout.code_offset(entry), pool.layout.code_bytes());
        view(pool.layout.scale_offset(pool.page_entries, entry), pool.layout.scale_bytes());
      } else {
        view(4 * pool.layout.width * entry, int64_t{4} * pool.layout.width);
      }
    }
  }
  static std::vector<std::byte> bytes(const ConstTensorView& key) {
    return {key.data, key.data + key.bytes()};
  }

  std::vector<ConstTensorView> keys_;
  std::vector<std::vector<std::byte>> before_;
};

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
    const SettledKeys settled(model_, step, cache_.layers());
    model_.forward(step, cache_.layers(), logits);
    settled.expect_unchanged();
    num_settled_ += settled.count();
    for (size_t i = 0; i < ids.size(); ++i)
      cache_.tables().commit(sequences_[i], static_cast<int64_t>(ids[i].size()));
    return logits;
  }
  size_t num_settled() const { return num_settled_; }  // keys, of all steps

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
  size_t num_settled_ = 0;
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
  EXPECT_GT(exact.num_settled(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Modes, PaddedStep, testing::Values(Numerics::kOfficial, Numerics::kExact),
                         [](const auto& mode) { return std::string(name(mode.param)); });

}  // namespace
}  // namespace dsv4
