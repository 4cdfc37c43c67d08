// Drafts on a GPU: the logits and the draws of a drafter beside the CPU's, and what is kept of a
// sequence for it, with padded and captured passes. MTP is the bundled model's block, DSpark a
// random one.

#include <gtest/gtest.h>

#include "dsv4/base/rng.h"
#include "dsv4/device/device.h"
#include "dsv4/engine/device_model.h"
#include "dsv4/engine/executor.h"
#include "dsv4/engine/speculation.h"
#include "tests/harness/gpu.h"
#include "tests/harness/random_model.h"
#include "tests/harness/tiny_model.h"
#include "tests/model/golden_files.h"

namespace dsv4 {
namespace {

using test::largest_difference;
using test::random_ids;

constexpr int64_t kContext = 500;

Model model_on(bool on_gpu, DrafterKind drafter) {
  Model model = drafter == DrafterKind::kMtp
                    ? Model::load("models/demo", drafter)
                    : test::random_model(test::tiny_dspark_config(), 6, drafter);
  if (on_gpu) move_to_device(model, {test::gpu(), [](Device*) {}}, [](int64_t, int64_t) {});
  return model;
}

// The sequences of one executor.
class Drafting {
 public:
  Drafting(const Model& model, const Context& context, int sequences)
      : executor_(model, context,
                  {.max_tokens = kContext,
                   .max_sequences = sequences,
                   .max_batch_tokens = kContext,
                   .max_logits_rows = sequences * (1 + kMaxDrafts),
                   .max_drafts = kMaxDrafts,
                   .drafter = model.weights().drafter->kind}),
        most_(model.config().dspark.empty() ? kMaxDrafts : model.config().dspark.block_size) {
    for (int i = 0; i < sequences; ++i) seqs_.push_back(executor_.cache().open());
  }

  int64_t most() const { return most_; }  // drafts of a sequence
  int64_t length(size_t i) const { return executor_.cache().length(seqs_[i]); }
  void feed(size_t i, std::span<const int32_t> ids) {
    const Work work{seqs_[i], ids};
    executor_.start({&work, 1});
  }
  // newest, most: of the first sequences
  std::vector<std::vector<int32_t>> draft(std::span<const int32_t> newest,
                                          std::span<const int64_t> most, const SampleRows& rows) {
    std::vector<Executor::DraftRow> wanted;
    for (size_t i = 0; i < newest.size(); ++i) {
      EXPECT_TRUE(executor_.cache().reserve(seqs_[i], 1 + most[i]));
      wanted.push_back({seqs_[i], newest[i], most[i]});
    }
    std::vector<std::vector<int32_t>> ids;
    chances_.clear();
    for (const Executor::Guesses& guesses : executor_.draft(wanted, rows)) {
      ids.push_back(guesses.ids);
      chances_.insert(chances_.end(), guesses.chances.begin(), guesses.chances.end());
    }
    return ids;
  }
  // A round whose first drafts hold: keeps 1 + held[i] of ids[i].
  void verify(const std::vector<std::vector<int32_t>>& ids, std::span<const int64_t> held) {
    std::vector<Work> work;
    for (size_t i = 0; i < ids.size(); ++i)
      work.push_back(
          {.seq = seqs_[i], .ids = ids[i], .logits = Work::Logits::kAll, .drafted = true});
    executor_.run(work);
    for (size_t i = 0; i < ids.size(); ++i) {
      for (int64_t row = 0; row <= held[i]; ++row) executor_.commit_one(seqs_[i]);
      executor_.cache().truncate(seqs_[i], length(i));
    }
    executor_.keep_streams();
  }
  // What a drafter said of the last drafts; empty: nothing.
  const std::vector<float>& chances() const { return chances_; }
  Buffer logits(int64_t rows) {  // of the last pass, or of the guesses of a block
    const ConstTensorView there = executor_.draft_logits().slice(0, 0, rows);
    Buffer here(DType::kF32, {rows, there.dim(1)});
    executor_.runner().logits_memory().download(here.view().data, there.data, there.bytes());
    return here;
  }

 private:
  Executor executor_;
  const int64_t most_;
  std::vector<SeqId> seqs_;
  std::vector<float> chances_;
};

class DraftsOnGpu : public testing::TestWithParam<DrafterKind> {
 protected:
  void SetUp() override {
    if (test::gpu() == nullptr) GTEST_SKIP() << "no GPU";
  }
};

// The numerics are exact and the limit is that of the model's logits (device_test.cc): one
// sequence, all lengths around the window's, every number of passes, rounds of which a part holds.
TEST_P(DraftsOnGpu, LogitsOfTheBlockAreThoseOfTheCpu) {
  const Model cpu = model_on(false, GetParam()), gpu = model_on(true, GetParam());
  const Context exact{.numerics = Numerics::kExact};
  Drafting a(cpu, exact, 1), b(gpu, exact, 1);
  const std::vector<int32_t> text = random_ids(kContext, cpu.config().vocab_size, 1);
  double off = 0;
  for (int64_t round = 0; a.length(0) < 300; ++round) {
    const int64_t most = 1 + round % a.most(), at = a.length(0);
    if (at == 0 || round % 5 == 4) {
      const auto chunk = std::span(text).subspan(static_cast<size_t>(at), round == 0 ? 90 : 3);
      a.feed(0, chunk), b.feed(0, chunk);
      continue;
    }
    SampleLists lists(cpu.config().vocab_size);
    lists.add({.temperature = 0}, 0);
    const int32_t newest = text[static_cast<size_t>(at)];
    const auto of_cpu = a.draft({&newest, 1}, {&most, 1}, lists.rows());
    const auto of_gpu = b.draft({&newest, 1}, {&most, 1}, lists.rows());
    ASSERT_EQ(of_cpu, of_gpu) << "round " << round;
    const int64_t rows = a.chances().empty() ? 1 : most;
    off = std::max(off, largest_difference(a.logits(rows), b.logits(rows)));
    ASSERT_EQ(a.chances().size(), b.chances().size());
    for (size_t i = 0; i < a.chances().size(); ++i)
      EXPECT_NEAR(a.chances()[i], b.chances()[i], 1e-4) << "round " << round;
    const std::vector<std::vector<int32_t>> ids = {
        {text.begin() + at, text.begin() + at + 1 + most}};
    const int64_t held = round % (most + 1);
    a.verify(ids, {&held, 1}), b.verify(ids, {&held, 1});
  }
  fmt::print("exact, {}, GPU against CPU: max |difference| {:.2e}\n", name(GetParam()), off);
  EXPECT_LE(off, 1e-3);
}

// Five or seven rows of unequal numbers of guesses, so that passes have rows that are done and rows
// of padding; temperatures, cuts, terms and masks in some of them. A size is captured in its second
// round, and there are few sizes, so that graphs are replayed. With official numerics one rounding
// may change a draw, so exact ones are compared.
TEST_P(DraftsOnGpu, DrawsAreThoseOfTheCpu) {
  constexpr int kSequences = 7;
  const Model cpu = model_on(false, GetParam()), gpu = model_on(true, GetParam());
  const int64_t vocab = cpu.config().vocab_size;
  const Context exact{.numerics = Numerics::kExact};
  Drafting a(cpu, exact, kSequences), b(gpu, exact, kSequences);
  for (size_t i = 0; i < kSequences; ++i) {
    const std::vector<int32_t> prompt = random_ids(20 + 17 * static_cast<int64_t>(i), vocab, i);
    a.feed(i, prompt), b.feed(i, prompt);
  }
  Rng rng(5);
  int64_t draws = 0, equal = 0;
  for (int round = 0; round < 40; ++round) {
    const size_t rows = rng.below(2) == 0 ? 5 : kSequences;  // 5 have a row of padding
    std::vector<int64_t> most;
    for (size_t i = 0; i < rows; ++i)
      most.push_back(i > 0 ? 1 + rng.below(most.back()) : rng.below(2) == 0 ? 2 : a.most());
    const std::vector<int32_t> newest = random_ids(static_cast<int64_t>(rows), vocab, 100 + round);
    SampleLists lists(vocab);
    for (size_t i = 0; i < rows; ++i) {
      const TokenTerm term{.id = static_cast<int32_t>(rng.below(vocab)), .count = 2, .seen = 1};
      lists.add({.temperature = rng.below(3) == 0 ? 0.f : 1.f,
                 .top_p = rng.below(2) == 0 ? 0.9f : 1.f,
                 .seed = static_cast<uint64_t>(rng.below(1000)),
                 .repetition_penalty = 1.3f},
                static_cast<uint64_t>(rng.below(100)),
                {&term, static_cast<size_t>(round % 3 == 0 ? 1 : 0)});
      if (round % 4 != 0 || rng.below(2) == 0) continue;
      for (uint32_t& word : lists.mask()) word = static_cast<uint32_t>(rng.below(int64_t{1} << 32));
    }
    const auto of_cpu = a.draft(newest, most, lists.rows());
    const auto of_gpu = b.draft(newest, most, lists.rows());
    std::vector<std::vector<int32_t>> ids;
    std::vector<int64_t> held;
    for (size_t i = 0; i < rows; ++i) {
      ASSERT_EQ(std::ssize(of_cpu[i]), most[i]);
      ASSERT_EQ(std::ssize(of_gpu[i]), most[i]);
      ++draws;
      equal += of_cpu[i] == of_gpu[i] ? 1 : 0;
      ids.push_back({newest[i]});
      ids.back().insert(ids.back().end(), of_cpu[i].begin(), of_cpu[i].end());
      held.push_back(rng.below(1 + most[i]));
    }
    a.verify(ids, held), b.verify(ids, held);
  }
  // A draw falls between two tokens to within the difference of the logits, 1e-3, at most.
  fmt::print("{} of {} chains of draws equal\n", equal, draws);
  EXPECT_GE(100 * equal, 99 * draws);
}

// With equal bits asked for, guesses depend on neither the rows beside them nor on captures.
TEST_P(DraftsOnGpu, AreThoseOfAFreshSequenceWhenDeterministic) {
  const Model gpu = model_on(true, GetParam());
  const int64_t vocab = gpu.config().vocab_size;
  const Context context{.need_batch_invariant = true};
  Drafting together(gpu, context, 3);
  std::vector<std::vector<int32_t>> texts;
  for (size_t i = 0; i < 3; ++i) {
    texts.push_back(random_ids(kContext, vocab, 60 + i));
    together.feed(i, std::span(texts[i]).first(30 + 40 * i));
  }
  Rng rng(9);
  for (int round = 0; together.length(0) < 200; ++round) {
    const std::vector<int64_t> most = {1 + round % together.most(), 1, 1};
    std::vector<int32_t> newest;
    SampleLists lists(vocab);
    for (size_t i = 0; i < 3; ++i) {
      newest.push_back(texts[i][static_cast<size_t>(together.length(i))]);
      lists.add({.temperature = 0.8f, .seed = i}, static_cast<uint64_t>(round));
    }
    const auto drafts = together.draft(newest, most, lists.rows());
    if (round % 8 == 0) {
      Drafting alone(gpu, context, 1);
      const auto known = std::span(texts[0]).first(static_cast<size_t>(together.length(0)));
      alone.feed(0, known);
      SampleLists one(vocab);
      one.add({.temperature = 0.8f, .seed = 0}, static_cast<uint64_t>(round));
      EXPECT_EQ(alone.draft({newest.data(), 1}, {most.data(), 1}, one.rows())[0], drafts[0])
          << "round " << round << ", " << known.size() << " tokens";
    }
    std::vector<std::vector<int32_t>> ids;
    std::vector<int64_t> held;
    for (size_t i = 0; i < 3; ++i) {
      const auto from = texts[i].begin() + together.length(i);
      ids.emplace_back(from, from + 1 + most[i]);
      held.push_back(rng.below(1 + most[i]));
    }
    together.verify(ids, held);
  }
}

INSTANTIATE_TEST_SUITE_P(Drafters, DraftsOnGpu,
                         testing::Values(DrafterKind::kMtp, DrafterKind::kDspark),
                         [](const auto& one) { return std::string(name(one.param)); });

}  // namespace
}  // namespace dsv4
