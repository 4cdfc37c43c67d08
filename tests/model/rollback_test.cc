// Rolling back a sequence lowers its length: removed tokens must not affect the logits of later
// tokens, whatever the length. Speculation and preemption depend on this.

#include <gtest/gtest.h>

#include "dsv4/base/rng.h"
#include "tests/harness/random_model.h"
#include "tests/harness/tiny_model.h"
#include "tests/model/golden_files.h"

namespace dsv4 {
namespace {

using test::random_ids;

constexpr int64_t kTokens = 290, kRollback = 3;

struct Mode {
  DrafterKind drafter;
  Numerics numerics;
};

class Rollback : public testing::TestWithParam<Mode> {
 protected:
  const DrafterKind drafter_ = GetParam().drafter;
  const Numerics numerics_ = GetParam().numerics;
  const Model model_ = test::random_model(test::tiny_config_of(drafter_), 9, drafter_);
};

// Steps as in speculative decoding: `accepted` correct tokens followed by kRollback wrong ones,
// which are rolled back.
TEST_P(Rollback, ContinuesWithTheSameBits) {
  const int64_t vocab = model_.config().vocab_size;
  const std::vector<int32_t> ids = random_ids(kTokens + kRollback, vocab, 1),
                             wrong = random_ids(kTokens + kRollback, vocab, 2);
  const Buffer want = test::all_logits(model_, numerics_, ids, 64);
  for (int64_t accepted = 1; accepted <= kRollback; ++accepted) {
    Executor executor(model_, Context{.numerics = numerics_},
                      {.max_tokens = kTokens + 2 * kRollback,
                       .max_batch_tokens = 16,
                       .max_logits_rows = 16,
                       .max_rollback = kRollback});
    const SeqId seq = executor.cache().open();
    for (int64_t at = 0; at < kTokens; at += accepted) {
      std::vector<int32_t> drafted(ids.begin() + at, ids.begin() + at + accepted);
      drafted.insert(drafted.end(), wrong.begin() + at, wrong.begin() + at + kRollback);
      const Work work{seq, drafted, Work::Logits::kAll};
      const ConstTensorView logits = executor.run({&work, 1});
      ASSERT_TRUE(
          test::same_bits(logits.slice(0, 0, accepted), want.view().slice(0, at, at + accepted)))
          << accepted << " tokens from " << at;
      executor.cache().truncate(seq, at + accepted);
      executor.cache().check_invariants();
    }
  }
}

// Rolls back to the start: the sequence behaves like a new one.
TEST_P(Rollback, ToTheStart) {
  const std::vector<int32_t> ids = random_ids(200, model_.config().vocab_size, 3);
  const Buffer want = test::all_logits(model_, numerics_, ids, 200);
  Executor executor(model_, Context{.numerics = numerics_},
                    {.max_tokens = 200, .max_batch_tokens = 200, .max_logits_rows = 200});
  const SeqId seq = executor.cache().open();
  for (const size_t first : {7, 130, 200}) {
    const Work some{seq, std::span<const int32_t>(ids).last(first)};
    executor.run({&some, 1});
    executor.cache().truncate(seq, 0);
    const Work all{seq, ids, Work::Logits::kAll};
    EXPECT_TRUE(test::same_bits(executor.run({&all, 1}), want)) << first;
    executor.cache().truncate(seq, 0);
  }
}

// ---- Late commits: steps whose tokens are committed when it is known which of them are kept.

// What later steps may read of a sequence: the entries of the window's tokens, those that are
// closed, with indexer keys, and the newest rows of the compressors; the drafter's rows, of which
// MTP has none of token 0.
std::vector<std::byte> visible_bytes(const Executor& executor, SeqId seq) {
  const bool mtp = executor.limits().drafter == DrafterKind::kMtp;
  std::vector<std::byte> bytes;
  const auto add = [&](const std::byte* from, int64_t n) {
    bytes.insert(bytes.end(), from, from + n);
  };
  const PageTables& tables = executor.cache();
  const int64_t length = tables.length(seq);
  const CachePlan& plan = executor.cache_plan();
  size_t pool = 0, state = 0;
  const auto add_pool = [&](const TensorView& pages, int64_t first = 0) {
    const CachePlan::Pool& layout = plan.pools[pool++];
    const CacheGroup& group = plan.groups[static_cast<size_t>(layout.group)];
    const int64_t end = length / group.tokens_per_entry;
    for (int64_t e =
             std::max<int64_t>(first, group.keep_tokens > 0 ? end - group.keep_tokens + 1 : 0);
         e < end; ++e) {
      const int32_t page =
          tables.pages(seq, layout.group)[static_cast<size_t>(e / group.page_entries)];
      const std::byte* begin = pages.data + page * (pages.bytes() / pages.dim(0));
      const int64_t at = e % group.page_entries;
      add(begin + at * layout.entry_bytes, layout.entry_bytes);
      add(begin + group.page_entries * layout.entry_bytes + at * layout.scale_bytes,
          layout.scale_bytes);
    }
  };
  const auto add_state = [&](const StatePool& rings) {
    const StateLayout& layout = plan.states[state++];
    const auto* ring = rings.slots.row<float>(tables.slot(seq));
    const int64_t first = std::max<int64_t>(
        0, length / layout.ratio * layout.ratio - (layout.overlap ? layout.ratio : 0));
    for (int plane = 0; plane < 2; ++plane)
      for (int64_t t = first; t < length; ++t)
        add(reinterpret_cast<const std::byte*>(ring + plane * layout.plane() +
                                               layout.row_of(t) * layout.columns()),
            layout.columns() * static_cast<int64_t>(sizeof(float)));
  };
  for (const LayerCache& layer : executor.layers()) {
    const bool last = &layer == &executor.layers().back();
    add_pool(layer.window.pages, mtp && last ? 1 : 0);
    if (!layer.entries.empty()) add_pool(layer.entries.pages);
    if (!layer.keys.empty()) add_pool(layer.keys.pages);
    if (!layer.entries.empty()) add_state(layer.state);
    if (!layer.keys.empty()) add_state(layer.index_state);
  }
  return bytes;
}

// Three sequences with unequal numbers of drafts, of which any number holds, over the boundaries of
// blocks and pages. From time to time each is compared with a sequence that was given the kept
// tokens in one chunk.
TEST_P(Rollback, LateCommitsLeaveWhatFreshSequencesHave) {
  constexpr int64_t kDrafts = 7, kLength = 500;
  const int64_t vocab = model_.config().vocab_size;
  Executor executor(model_, Context{.numerics = numerics_},
                    {.max_tokens = kLength + 16,
                     .max_sequences = 3,
                     .max_batch_tokens = 3 * (1 + kDrafts),
                     .max_logits_rows = 3 * (1 + kDrafts),
                     .max_drafts = kDrafts,
                     .drafter = drafter_});
  Rng rng(5);
  std::vector<SeqId> seqs;
  std::vector<std::vector<int32_t>> kept;
  for (int64_t s = 0; s < 3; ++s) {
    seqs.push_back(executor.cache().open());
    kept.push_back(random_ids(kLength + 16, vocab, 20 + static_cast<uint64_t>(s)));
  }
  std::vector<int64_t> length(3, 0);
  int compared = 0;
  for (int64_t step = 1; *std::ranges::min_element(length) < kLength; ++step) {
    std::vector<std::vector<int32_t>> ids(3);
    std::vector<Work> work;
    std::vector<size_t> running;
    for (size_t s = 0; s < 3; ++s) {
      if (length[s] >= kLength) continue;
      const int64_t accepted = rng.below(kDrafts + 1),
                    drafts = accepted + rng.below(kDrafts + 1 - accepted);
      const auto at = kept[s].begin() + length[s];
      ids[s].assign(at, at + 1 + accepted);
      for (int64_t i = accepted; i < drafts; ++i)
        ids[s].push_back(static_cast<int32_t>(rng.below(vocab)));
      work.push_back(
          {.seq = seqs[s], .ids = ids[s], .logits = Work::Logits::kAll, .drafted = true});
      running.push_back(s);
      length[s] += 1 + accepted;
    }
    executor.run(work);
    for (const size_t s : running) {
      const int64_t before = executor.cache().length(seqs[s]);
      for (int64_t i = before; i < length[s]; ++i) executor.commit_one(seqs[s]);
      executor.cache().truncate(seqs[s], length[s]);
    }
    executor.cache().check_invariants();
    if (step % 9 != 0) continue;
    for (size_t s = 0; s < 3; ++s) {
      Executor fresh(
          model_, Context{.numerics = numerics_},
          {.max_tokens = kLength + 16, .max_batch_tokens = kLength + 16, .drafter = drafter_});
      const SeqId seq = fresh.cache().open();
      const Work all{seq, std::span<const int32_t>(kept[s]).first(static_cast<size_t>(length[s])),
                     Work::Logits::kLast};
      fresh.run({&all, 1});
      ASSERT_TRUE(visible_bytes(executor, seqs[s]) == visible_bytes(fresh, seq))
          << "sequence " << s << " of " << length[s] << " tokens, step " << step;
      ++compared;
    }
  }
  EXPECT_GT(compared, 20);
}

INSTANTIATE_TEST_SUITE_P(Modes, Rollback,
                         testing::Values(Mode{DrafterKind::kMtp, Numerics::kOfficial},
                                         Mode{DrafterKind::kMtp, Numerics::kExact},
                                         Mode{DrafterKind::kDspark, Numerics::kOfficial},
                                         Mode{DrafterKind::kDspark, Numerics::kExact}),
                         [](const auto& mode) {
                           return fmt::format("{}_{}", name(mode.param.drafter),
                                              name(mode.param.numerics));
                         });

}  // namespace
}  // namespace dsv4
