#include "dsv4/cache/page_tables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"

namespace dsv4 {
namespace {

constexpr int64_t kRollback = 2;

PageTables small_tables() {
  constexpr CacheGroup kGroups[] = {
      {.tokens_per_entry = 1, .page_entries = 4, .num_pages = 12, .keep_tokens = 6},
      {.tokens_per_entry = 4, .page_entries = 2, .num_pages = 9}};
  return PageTables(kGroups, 3, kRollback);
}

void append(PageTables& tables, SeqId seq, int64_t count) {
  ASSERT_TRUE(tables.reserve(seq, count));
  tables.commit(seq, count);
  tables.check_invariants();
}

int64_t num_held(std::span<const int32_t> table) {
  return std::count_if(table.begin(), table.end(), [](int32_t page) { return page >= 0; });
}

TEST(PageTables, GivesPagesAsEntriesClose) {
  PageTables tables = small_tables();
  const SeqId seq = tables.open();
  ASSERT_TRUE(tables.reserve(seq, 3));
  EXPECT_EQ(tables.pages(seq, 0).size(), 1u);
  EXPECT_EQ(tables.pages(seq, 1).size(), 0u);  // no block of 4 has closed
  tables.commit(seq, 3);
  ASSERT_TRUE(tables.reserve(seq, 1));
  tables.commit(seq, 1);
  EXPECT_EQ(tables.pages(seq, 1).size(), 1u);
  EXPECT_EQ(tables.length(seq), 4);
}

TEST(PageTables, WindowPagesGoBack) {
  PageTables tables = small_tables();
  const SeqId seq = tables.open();
  for (int64_t t = 0; t < 40; ++t) {
    ASSERT_TRUE(tables.reserve(seq, 1)) << t;
    tables.commit(seq, 1);
    tables.check_invariants();
    const auto pages = tables.pages(seq, 0);
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

TEST(PageTables, ReserveIsAllOrNothing) {
  PageTables tables = small_tables();
  const SeqId seq = tables.open();
  EXPECT_FALSE(tables.reserve(seq, 49));  // 13 window pages, 12 exist
  EXPECT_EQ(tables.pages(seq, 0).size(), 0u);
  EXPECT_TRUE(tables.reserve(seq, 48));
}

TEST(PageTables, SaysWhatIsWrong) {
  PageTables tables = small_tables();
  const SeqId seq = tables.open();
  tables.open();
  tables.open();
  EXPECT_THROW(tables.open(), Error);
  tables.close(seq);
  EXPECT_THROW(tables.close(seq), Error);
  const SeqId next = tables.open();
  EXPECT_EQ(tables.slot(next), 0) << "the slot is used again, the handle is not";
  EXPECT_NE(next, seq);
  EXPECT_THROW((void)tables.length(seq), Error);
  EXPECT_THROW((void)tables.length(static_cast<SeqId>(99)), Error);
}

TEST(PageTables, HeldPagesFollowFromTheLength) {
  PageTables tables = small_tables();
  const SeqId seq = tables.open();
  for (int64_t t = 1; t < 40; ++t) {
    append(tables, seq, 1);
    for (int g = 0; g < 2; ++g) {
      const CacheGroup& group = tables.groups()[static_cast<size_t>(g)];
      EXPECT_EQ(static_cast<int64_t>(tables.pages(seq, g).size()), table_pages(group, t)) << t;
      EXPECT_EQ(num_held(tables.pages(seq, g)), held_pages(group, t)) << t;
      EXPECT_EQ(tables.free_pages(g), group.num_pages - held_pages(group, t)) << t;
    }
  }
}

TEST(PageTables, ShortenedSequencesGivePagesBack) {
  PageTables tables = small_tables();
  const SeqId seq = tables.open();
  append(tables, seq, 17);
  tables.truncate(seq, 15);
  tables.check_invariants();
  EXPECT_EQ(tables.length(seq), 15);
  EXPECT_EQ(tables.pages(seq, 0).size(), 4u);
  EXPECT_EQ(tables.pages(seq, 1).size(), 2u);
  EXPECT_THROW(tables.truncate(seq, 16), Error) << "longer";
  EXPECT_THROW(tables.truncate(seq, 12), Error) << "further than promised";
  tables.truncate(seq, 0);
  tables.check_invariants();
  EXPECT_EQ(tables.free_pages(0), 12);
  EXPECT_EQ(tables.free_pages(1), 9);
  append(tables, seq, 9);
}

TEST(PageTables, PrefixesShareTheirPages) {
  PageTables tables = small_tables();
  const SeqId first = tables.open();
  append(tables, first, 16);
  const PagePrefix prefix = tables.hold(first, 16);
  append(tables, first, 2);
  const int64_t free = tables.free_pages(1);
  const SeqId second = tables.open();
  tables.attach(second, prefix);
  tables.check_invariants();
  EXPECT_EQ(tables.length(second), 16);
  EXPECT_EQ(tables.free_pages(1), free) << "nothing was taken";
  EXPECT_EQ(tables.pages(second, 1)[0], tables.pages(first, 1)[0]);
  append(tables, second, 8);
  EXPECT_NE(tables.pages(second, 1)[2], prefix.tables[1][0]) << "what follows is its own";
  EXPECT_THROW(tables.attach(second, prefix), Error);
  tables.truncate(second, 22);
  tables.close(first);
  tables.check_invariants();
  tables.release(prefix);
  tables.check_invariants();
  tables.close(second);
  tables.check_invariants();
  EXPECT_EQ(tables.free_pages(0), 12);
  EXPECT_EQ(tables.free_pages(1), 9);
}

TEST(PageTables, SharedTokensAreNotRewritten) {
  PageTables tables = small_tables();
  const SeqId first = tables.open(), second = tables.open();
  append(tables, first, 16);
  const PagePrefix prefix = tables.hold(first, 16);
  append(tables, first, 1);
  EXPECT_THROW(tables.truncate(first, 15), Error);
  tables.attach(second, prefix);
  EXPECT_THROW(tables.truncate(second, 15), Error);
  tables.truncate(second, 0);
  tables.check_invariants();
  append(tables, first, 11);
  EXPECT_THROW((void)tables.hold(first, 26), Error) << "an entry is not whole";
  EXPECT_THROW((void)tables.hold(first, 16), Error) << "its window is gone";
  tables.release(prefix);
  tables.check_invariants();
}

// A prefix of 12 tokens fills one page and a half of the second group.
TEST(PageTables, APageFilledInPartIsCopied) {
  PageTables tables = small_tables();
  const SeqId first = tables.open(), second = tables.open();
  append(tables, first, 12);
  const PagePrefix prefix = tables.hold(first, 12);
  append(tables, first, 6);
  EXPECT_EQ(tables.pages(first, 1)[1], prefix.tables[1][1]) << "goes on in the same page";
  const auto parts = tables.attach(second, prefix);
  tables.check_invariants();
  ASSERT_TRUE(parts);
  ASSERT_EQ(parts->size(), 1u);
  EXPECT_EQ(parts->at(0).group, 1);
  EXPECT_EQ(parts->at(0).from, prefix.tables[1][1]);
  EXPECT_EQ(parts->at(0).to, tables.pages(second, 1)[1]);
  EXPECT_EQ(parts->at(0).entries, 1);
  EXPECT_NE(parts->at(0).to, parts->at(0).from);
  EXPECT_EQ(tables.pages(second, 1)[0], prefix.tables[1][0]);
  tables.close(first);
  append(tables, second, 4);
  tables.release(prefix);
  tables.check_invariants();
  tables.close(second);
  EXPECT_EQ(tables.free_pages(0), 12);
  EXPECT_EQ(tables.free_pages(1), 9);
}

TEST(PageTables, WithoutAFreePageASequenceStaysEmpty) {
  PageTables tables = small_tables();
  const SeqId first = tables.open(), second = tables.open(), third = tables.open();
  append(tables, first, 12);
  const PagePrefix prefix = tables.hold(first, 12);
  for (int i = 0; i < 14; ++i) append(tables, second, 4);
  EXPECT_EQ(tables.free_pages(1), 0);
  EXPECT_FALSE(tables.attach(third, prefix));
  tables.check_invariants();
  EXPECT_EQ(tables.length(third), 0);
  tables.close(second);
  EXPECT_TRUE(tables.attach(third, prefix));
  tables.check_invariants();
}

// Random operations against the obvious model: lengths, and which pages must exist.
TEST(PageTables, RandomOperationsKeepInvariants) {
  Rng rng(7);
  PageTables tables = small_tables();
  std::map<SeqId, int64_t> lengths;
  std::vector<PagePrefix> prefixes;
  int refused = 0, shared = 0;
  for (int i = 0; i < 8000; ++i) {
    const int64_t what = rng.below(12);
    if (what == 0 && lengths.size() < 3) {
      const SeqId seq = tables.open();
      lengths[seq] = 0;
      if (!prefixes.empty()) {
        if (tables.attach(seq, prefixes.back())) {
          lengths[seq] = prefixes.back().tokens;
          ++shared;
        }
      }
    }
    if (lengths.empty()) continue;
    auto it = lengths.begin();
    std::advance(it, rng.below(static_cast<int64_t>(lengths.size())));
    auto& [seq, length] = *it;
    if (what == 1) {
      tables.close(seq);
      lengths.erase(it);
    } else if (what == 2) {
      if (length > 0 && length % 4 == 0 && prefixes.size() < 2) {
        prefixes.push_back(tables.hold(seq, length));
      } else if (!prefixes.empty()) {
        tables.release(prefixes.back());
        prefixes.pop_back();
      }
    } else if (what == 3) {
      tables.truncate(seq, 0);
      length = 0;
    } else if (what > 3) {
      const int64_t count = 1 + rng.below(5);
      if (tables.reserve(seq, count)) {
        tables.commit(seq, count);
        length += count;
      } else {
        ++refused;
      }
    }
    tables.check_invariants();
    for (const auto& [open, tokens] : lengths) ASSERT_EQ(tables.length(open), tokens);
  }
  EXPECT_GT(refused, 0) << "the pools never ran dry: the test is too easy";
  EXPECT_GT(shared, 0);
}

}  // namespace
}  // namespace dsv4
