// Rolling back a sequence lowers its length: removed tokens must not affect the logits of later
// tokens, whatever the length. Speculation and preemption depend on this.

#include <gtest/gtest.h>

#include "tests/harness/random_model.h"
#include "tests/harness/tiny_model.h"
#include "tests/model/golden_files.h"

namespace dsv4 {
namespace {

using test::random_ids;

constexpr int64_t kTokens = 290, kRollback = 3;

class Rollback : public testing::TestWithParam<Numerics> {
 protected:
  Rollback() : model_(test::random_model(test::tiny_config(), 9)) {}
  Model model_;
};

// Steps as in speculative decoding: `accepted` correct tokens followed by kRollback wrong ones,
// which are rolled back.
TEST_P(Rollback, ContinuesWithTheSameBits) {
  const int64_t vocab = model_.config().vocab_size;
  const std::vector<int32_t> ids = random_ids(kTokens + kRollback, vocab, 1),
                             wrong = random_ids(kTokens + kRollback, vocab, 2);
  const Buffer want = test::all_logits(model_, GetParam(), ids, 64);
  for (int64_t accepted = 1; accepted <= kRollback; ++accepted) {
    Executor executor(model_, Context{.numerics = GetParam()},
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
  const Buffer want = test::all_logits(model_, GetParam(), ids, 200);
  Executor executor(model_, Context{.numerics = GetParam()},
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

INSTANTIATE_TEST_SUITE_P(Modes, Rollback, testing::Values(Numerics::kOfficial, Numerics::kExact),
                         [](const auto& mode) { return std::string(name(mode.param)); });

}  // namespace
}  // namespace dsv4
