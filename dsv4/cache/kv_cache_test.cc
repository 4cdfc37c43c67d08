#include "dsv4/cache/kv_cache.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"

namespace dsv4 {
namespace {

CachePlan small_plan() {
  return {.groups = {{.tokens_per_entry = 1, .page_entries = 4, .num_pages = 12, .keep_tokens = 6},
                     {.tokens_per_entry = 4, .page_entries = 2, .num_pages = 9}},
          .pools = {{.group = 0, .dtype = DType::kF32, .page_items = 8},
                    {.group = 1, .dtype = DType::kU8, .page_items = 16}},
          .states = {{.ratio = 4, .width = 2, .overlap = true}},
          .max_sequences = 3};
}

TEST(KvCache, GivesPagesAsEntriesClose) {
  KvCache cache(small_plan());
  const SeqId seq = cache.open();
  ASSERT_TRUE(cache.reserve(seq, 3));
  EXPECT_EQ(cache.pages(seq, 0).size(), 1u);
  EXPECT_EQ(cache.pages(seq, 1).size(), 0u);  // no block of 4 has closed
  cache.commit(seq, 3);
  ASSERT_TRUE(cache.reserve(seq, 1));
  cache.commit(seq, 1);
  EXPECT_EQ(cache.pages(seq, 1).size(), 1u);
  EXPECT_EQ(cache.length(seq), 4);
}

TEST(KvCache, WindowPagesGoBack) {
  KvCache cache(small_plan());
  const SeqId seq = cache.open();
  for (int64_t t = 0; t < 40; ++t) {
    ASSERT_TRUE(cache.reserve(seq, 1)) << t;
    cache.commit(seq, 1);
    cache.check_invariants();
    const auto pages = cache.pages(seq, 0);
    // Every token that the next query sees is still there: itself and 5 before it.
    for (int64_t seen = std::max<int64_t>(0, t + 1 - 5); seen <= t; ++seen) {
      EXPECT_GE(pages[static_cast<size_t>(seen / 4)], 0)
          << "token " << seen << " at length " << t + 1;
    }
    int64_t held = 0;
    for (const int32_t page : pages) held += page >= 0 ? 1 : 0;
    EXPECT_LE(held, 3);
  }
}

TEST(KvCache, ReserveIsAllOrNothing) {
  KvCache cache(small_plan());
  const SeqId seq = cache.open();
  EXPECT_FALSE(cache.reserve(seq, 49));  // 13 window pages, 12 exist
  EXPECT_EQ(cache.pages(seq, 0).size(), 0u);
  EXPECT_TRUE(cache.reserve(seq, 48));
}

TEST(KvCache, SaysWhatIsWrong) {
  KvCache cache(small_plan());
  const SeqId seq = cache.open();
  cache.open();
  cache.open();
  EXPECT_THROW(cache.open(), Error);
  cache.close(seq);
  EXPECT_THROW(cache.close(seq), Error);
  EXPECT_THROW((void)cache.length(static_cast<SeqId>(99)), Error);
}

// Random operations against the obvious model: lengths, and which pages must exist.
TEST(KvCache, RandomOperationsKeepInvariants) {
  Rng rng(7);
  KvCache cache(small_plan());
  std::map<SeqId, int64_t> lengths;
  int refused = 0;
  for (int i = 0; i < 4000; ++i) {
    const int64_t what = rng.below(10);
    if (what == 0 && lengths.size() < 3) lengths[cache.open()] = 0;
    if (lengths.empty()) continue;
    auto it = lengths.begin();
    std::advance(it, rng.below(static_cast<int64_t>(lengths.size())));
    if (what == 1) {
      cache.close(it->first);
      lengths.erase(it);
    } else if (what > 1) {
      const int64_t count = 1 + rng.below(5);
      if (cache.reserve(it->first, count)) {
        cache.commit(it->first, count);
        it->second += count;
      } else {
        ++refused;
      }
    }
    cache.check_invariants();
    for (const auto& [seq, length] : lengths) ASSERT_EQ(cache.length(seq), length);
  }
  EXPECT_GT(refused, 0) << "the pools never ran dry: the test is too easy";
}

}  // namespace
}  // namespace dsv4
