// A sequence that begins with a stored prefix continues with the bits of one that computed it.

#include "dsv4/engine/prefix_cache.h"

#include <gtest/gtest.h>

#include "dsv4/base/error.h"
#include "dsv4/engine/executor.h"
#include "tests/harness/random_model.h"
#include "tests/harness/tiny_model.h"
#include "tests/model/golden_files.h"

namespace dsv4 {
namespace {

using test::random_ids;

constexpr int64_t kStep = 128;  // half a page of 64 entries of 4 tokens

class PrefixCacheTest : public testing::TestWithParam<Numerics> {
 protected:
  PrefixCacheTest() : model_(test::random_model(test::tiny_config(), 4)) {}

  std::unique_ptr<Executor> executor(int checkpoints, int64_t rollback = 0) const {
    return std::make_unique<Executor>(model_, Context{.numerics = GetParam()},
                                      CacheLimits{.max_tokens = 1200,
                                                  .max_sequences = 3,
                                                  .max_batch_tokens = 1200,
                                                  .max_logits_rows = 1200,
                                                  .max_rollback = rollback,
                                                  .checkpoints = checkpoints});
  }
  static void feed(Executor& executor, SeqId seq, std::span<const int32_t> ids) {
    const Work work{seq, ids};
    executor.run({&work, 1});
    executor.cache().check_invariants();
  }
  std::span<const int32_t> ids(int64_t n) const { return std::span(ids_).first(size_t(n)); }

  Model model_;
  std::vector<int32_t> ids_ = random_ids(1100, 40, 1);
};

// With a rollback of 246, rings have 254 rows, around whose end those of 256 tokens wrap.
TEST_P(PrefixCacheTest, ContinuesWithTheBitsOfTheWhole) {
  const Buffer want = test::all_logits(model_, GetParam(), ids_, 1100);
  for (const int64_t rollback : {0, 3, 246}) {
    for (const int64_t prefix : {kStep, 2 * kStep, 5 * kStep}) {
      const auto e = executor(2, rollback);
      ASSERT_EQ(e->prefixes()->step(), kStep);
      const SeqId first = e->cache().open();
      feed(*e, first, ids(prefix));
      e->prefixes()->store(first, "", ids(prefix));
      feed(*e, first, std::span(ids_).subspan(size_t(prefix), 33));  // writes after the prefix
      e->cache().close(first);
      const SeqId filler = e->cache().open();  // another sequence's state in the first slot
      feed(*e, filler, random_ids(300, 40, 2));

      const SeqId second = e->cache().open();
      EXPECT_EQ(e->prefixes()->attach(second, "", ids_).tokens, prefix);
      EXPECT_EQ(e->cache().length(second), prefix);
      const Work rest{second, std::span(ids_).subspan(size_t(prefix)), Work::Logits::kAll};
      EXPECT_TRUE(test::same_bits(e->run({&rest, 1}), want.view().slice(0, prefix, 1100)))
          << prefix << " tokens, rollback " << rollback;
      e->cache().check_invariants();
    }
  }
}

// The chunk goes on after the checkpoint, by as much as a ring's rows allow; another sequence
// continues there while the first one goes on writing to the page that they share.
TEST_P(PrefixCacheTest, ACheckpointInsideAChunk) {
  const Buffer want = test::all_logits(model_, GetParam(), ids_, 1100);
  for (const int64_t after : {int64_t{1}, int64_t{50}, kStep - 1}) {
    const auto e = executor(2);
    const SeqId first = e->cache().open(), second = e->cache().open();
    const int64_t prefix = 3 * kStep;
    const Work chunk{first, ids(prefix + after), Work::Logits::kNone, prefix};
    e->start({&chunk, 1}, [&](size_t i) {
      EXPECT_EQ(i, 0u);
      e->prefixes()->store(first, "", ids(prefix));
    });
    e->cache().check_invariants();
    EXPECT_EQ(e->prefixes()->attach(second, "", ids_).tokens, prefix);
    const Work rest[] = {
        {first, std::span(ids_).subspan(size_t(prefix + after), 200), Work::Logits::kAll},
        {second, std::span(ids_).subspan(size_t(prefix), 300), Work::Logits::kAll}};
    const ConstTensorView got = e->run(rest);
    EXPECT_TRUE(test::same_bits(got.slice(0, 0, 200),
                                want.view().slice(0, prefix + after, prefix + after + 200)))
        << after;
    EXPECT_TRUE(test::same_bits(got.slice(0, 200, 500), want.view().slice(0, prefix, prefix + 300)))
        << after;
    e->cache().check_invariants();
  }
}

TEST_P(PrefixCacheTest, SharesTheLongestPrefixOfOneSalt) {
  const auto e = executor(3);
  PrefixCache& prefixes = *e->prefixes();
  const SeqId seq = e->cache().open();
  for (int64_t n = kStep; n <= 2 * kStep; n += kStep) {
    feed(*e, seq, ids(n).last(kStep));
    prefixes.store(seq, "a", ids(n));
  }
  EXPECT_EQ(prefixes.match("a", ids(kStep - 1)).tokens, 0);
  EXPECT_EQ(prefixes.match("a", ids(2 * kStep - 1)).tokens, kStep);
  EXPECT_EQ(prefixes.match("a", ids_).tokens, 2 * kStep);
  EXPECT_EQ(prefixes.match("", ids_).tokens, 0);
  prefixes.store(seq, "a", ids(2 * kStep));
  EXPECT_EQ(prefixes.size(), 2) << "stored once";
  EXPECT_THROW(prefixes.store(seq, "a", ids(kStep)), Error) << "not the sequence's length";
}

TEST_P(PrefixCacheTest, GivesUpTheLeastRecentlyUsed) {
  const auto e = executor(2);
  PrefixCache& prefixes = *e->prefixes();
  const auto add = [&](uint64_t seed) {
    const SeqId seq = e->cache().open();
    const std::vector<int32_t> text = random_ids(kStep, 40, seed);
    feed(*e, seq, text);
    prefixes.store(seq, "", text);
    e->cache().close(seq);
    e->cache().check_invariants();
  };
  const auto known = [&](uint64_t seed) {
    return prefixes.match("", random_ids(kStep, 40, seed)).tokens > 0;
  };
  add(1), add(2);
  const SeqId reader = e->cache().open();
  prefixes.attach(reader, "", random_ids(kStep, 40, 1));
  add(3);
  EXPECT_TRUE(known(1)) << "read after 2 was written";
  EXPECT_FALSE(known(2));
  EXPECT_TRUE(known(3));
  EXPECT_TRUE(prefixes.evict());
  EXPECT_TRUE(prefixes.evict());
  EXPECT_FALSE(prefixes.evict());
  e->cache().check_invariants();
  e->cache().close(reader);
  e->cache().check_invariants();
  for (size_t g = 0; g < e->cache().groups().size(); ++g) {
    const auto group = static_cast<int>(g);
    EXPECT_EQ(e->cache().free_pages(group), e->cache().groups()[g].num_pages);
    EXPECT_EQ(e->cache().idle_pages(group), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, PrefixCacheTest,
                         testing::Values(Numerics::kOfficial, Numerics::kExact),
                         [](const auto& mode) { return std::string(name(mode.param)); });

}  // namespace
}  // namespace dsv4
