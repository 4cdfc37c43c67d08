#include "dsv4/cache/prefix_index.h"

#include <gtest/gtest.h>

#include <map>

#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"

namespace dsv4 {
namespace {

std::vector<int32_t> text(std::initializer_list<int32_t> steps) {  // each number: a step of 4
  std::vector<int32_t> ids;
  for (const int32_t step : steps) ids.insert(ids.end(), {step, step + 1, step + 2, step + 3});
  return ids;
}

TEST(PrefixIndex, FindsTheLongestPrefixWithACheckpoint) {
  PrefixIndex index(4);
  EXPECT_EQ(index.find("", text({10})).checkpoint, -1);
  EXPECT_FALSE(index.insert("", text({10, 20, 30}), 7));
  EXPECT_FALSE(index.insert("", text({10}), 3));
  const auto found = [&](std::initializer_list<int32_t> steps) {
    const PrefixIndex::Match match = index.find("", text(steps));
    return std::pair(match.checkpoint, match.tokens);
  };
  EXPECT_EQ(found({10}), std::pair(3, int64_t{4}));
  EXPECT_EQ(found({10, 20}), std::pair(3, int64_t{4})) << "the step in between has none";
  EXPECT_EQ(found({10, 20, 30}), std::pair(7, int64_t{12}));
  EXPECT_EQ(found({10, 20, 30, 40}), std::pair(7, int64_t{12}));
  EXPECT_EQ(found({10, 21, 30}), std::pair(3, int64_t{4}));
  EXPECT_EQ(found({20}), std::pair(-1, int64_t{0})) << "a step is found after its parent only";
  EXPECT_EQ(index.find("", std::vector<int32_t>{10, 11, 12}).tokens, 0) << "less than a step";
}

TEST(PrefixIndex, SaysHowFarTextsGoTogether) {
  PrefixIndex index(4);
  index.insert("", text({10, 20, 30, 40}), 0);
  index.insert("", text({10}), 1);
  const auto common = [&](std::initializer_list<int32_t> steps) {
    return index.find("", text(steps)).common;
  };
  EXPECT_EQ(common({10, 20, 30, 50}), 12);
  EXPECT_EQ(index.find("", text({10, 20, 30, 50})).tokens, 4);
  EXPECT_EQ(common({10, 20, 30, 40, 50}), 16);
  EXPECT_EQ(common({20}), 0);
}

TEST(PrefixIndex, SaltsShareNothing) {
  PrefixIndex index(4);
  index.insert("a", text({10}), 0);
  EXPECT_EQ(index.find("a", text({10})).tokens, 4);
  EXPECT_EQ(index.find("", text({10})).tokens, 0);
  EXPECT_EQ(index.find("b", text({10})).tokens, 0);
}

TEST(PrefixIndex, NamesTheCheckpointThatATextAlreadyHas) {
  PrefixIndex index(4);
  index.insert("", text({10}), 0);
  EXPECT_EQ(index.insert("", text({10}), 1), 0);
  EXPECT_FALSE(index.insert("", text({20}), 1)) << "1 stays unused by the first attempt";
}

TEST(PrefixIndex, ErasesNodesThatLeadNowhere) {
  PrefixIndex index(4);
  index.insert("", text({10, 20, 30}), 0);
  index.insert("", text({10, 20}), 1);
  EXPECT_EQ(index.num_nodes(), 4u);  // the root too
  index.erase(1);
  EXPECT_EQ(index.num_nodes(), 4u) << "they still lead to 0";
  EXPECT_EQ(index.find("", text({10, 20, 30})).checkpoint, 0);
  index.erase(0);
  EXPECT_EQ(index.num_nodes(), 0u);
  EXPECT_EQ(index.find("", text({10, 20, 30})).checkpoint, -1);
}

TEST(PrefixIndex, RefusesWhatIsNoCheckpoint) {
  PrefixIndex index(4);
  EXPECT_THROW(index.insert("", std::vector<int32_t>{1, 2, 3, 4, 5}, 0), Error);
  EXPECT_THROW(index.insert("", {}, 0), Error);
  EXPECT_THROW(index.insert("", text({1}), -1), Error);
  index.insert("", text({1}), 0);
  EXPECT_THROW(index.insert("", text({2}), 0), Error);
  EXPECT_THROW(index.erase(1), Error);
}

// Random insertions, erasures and lookups beside a map of whole texts. Few different ids, so texts
// share prefixes.
TEST(PrefixIndex, AgreesWithAListOfTexts) {
  PrefixIndex index(3);
  std::map<std::pair<std::string, std::vector<int32_t>>, int> texts;
  Rng rng(5);
  for (int round = 0; round < 3000; ++round) {
    const std::string salt(1, static_cast<char>('a' + rng.below(2)));
    std::vector<int32_t> ids;
    for (int64_t n = 3 * (1 + static_cast<int64_t>(rng.below(5))); n > 0; --n)
      ids.push_back(static_cast<int32_t>(rng.below(2)));
    if (rng.below(3) == 0 && !texts.empty()) {
      auto victim = texts.begin();
      std::advance(victim, rng.below(texts.size()));
      index.erase(victim->second);
      texts.erase(victim);
    } else if (const auto before = index.insert(salt, ids, round)) {
      const auto found = texts.find({salt, ids});
      ASSERT_NE(found, texts.end());
      EXPECT_EQ(*before, found->second);
    } else {
      ASSERT_TRUE(texts.emplace(std::pair(salt, ids), round).second);
    }
    ids.push_back(0);  // a remainder of less than a step
    PrefixIndex::Match want;
    for (size_t n = 3; n <= ids.size(); n += 3) {
      const auto found = texts.find({salt, {ids.begin(), ids.begin() + static_cast<int64_t>(n)}});
      if (found != texts.end()) want = PrefixIndex::Match{found->second, static_cast<int64_t>(n)};
    }
    const PrefixIndex::Match got = index.find(salt, ids);
    EXPECT_EQ(got.checkpoint, want.checkpoint);
    EXPECT_EQ(got.tokens, want.tokens);
    EXPECT_GE(got.common, want.tokens);
  }
  for (const auto& [text, checkpoint] : texts) index.erase(checkpoint);
  EXPECT_EQ(index.num_nodes(), 0u);
}

}  // namespace
}  // namespace dsv4
