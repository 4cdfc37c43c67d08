#include "dsv4/engine/lookup.h"

#include <gtest/gtest.h>

#include "dsv4/base/rng.h"

namespace dsv4 {
namespace {

using Tokens = std::vector<int32_t>;

// What the lookup drafts in one step, at most so many.
Tokens drafts_of(Lookup& lookup, const Tokens& tokens, size_t prompt, size_t most) {
  lookup.begin(tokens, prompt);
  Tokens drafts;
  while (drafts.size() < most) {
    const auto guess = lookup.next();
    if (!guess) break;
    drafts.push_back(guess->token);
    lookup.take(guess->token);
  }
  return drafts;
}

TEST(Lookup, DraftsWhatFollowedTheLastTokensBefore) {
  Lookup lookup({});
  EXPECT_EQ(drafts_of(lookup, {1, 2, 3, 4, 5, 6, 9, 2, 3}, 9, 3), Tokens());  // two tokens: no
  EXPECT_EQ(drafts_of(lookup, {1, 2, 3, 4, 5, 6, 9, 2, 3, 4}, 9, 3), (Tokens{5, 6, 9}));
}

TEST(Lookup, PrefersTheLongestAndThenTheLatest) {
  Lookup lookup({});
  EXPECT_EQ(drafts_of(lookup, {1, 2, 3, 4, 50, 8, 2, 3, 4, 60, 8, 2, 3, 4, 70, 1, 2, 3, 4}, 19, 1),
            Tokens{50});
  EXPECT_EQ(
      drafts_of(lookup, {1, 2, 3, 4, 50, 8, 2, 3, 4, 60, 8, 2, 3, 4, 70, 1, 2, 3, 4, 5, 2, 3, 4},
                19, 1),
      Tokens{5});
}

// At its end a draft is looked for like a token.
TEST(Lookup, GoesOnFromItsOwnDrafts) {
  Lookup lookup({});
  EXPECT_EQ(drafts_of(lookup, {7, 8, 9, 7, 8, 9}, 6, 5), (Tokens{7, 8, 9, 7, 8}));
}

TEST(Lookup, FollowsThePredictionFromItsBeginning) {
  const Tokens prediction = {5, 6, 7, 8, 9};
  Lookup lookup(prediction);
  EXPECT_EQ(drafts_of(lookup, {1, 2}, 2, 3), (Tokens{5, 6, 7}));
  EXPECT_EQ(drafts_of(lookup, {1, 2, 5, 6}, 2, 9), (Tokens{7, 8, 9}));
}

TEST(Lookup, FindsThePredictionAgain) {
  const Tokens prediction = {5, 6, 7, 8, 9, 10};
  Lookup lookup(prediction);
  EXPECT_EQ(drafts_of(lookup, {1, 2, 5, 40}, 2, 3), Tokens());
  EXPECT_EQ(drafts_of(lookup, {1, 2, 5, 40, 7, 8}, 2, 9), (Tokens{9, 10}));
  EXPECT_EQ(drafts_of(lookup, {1, 2, 5, 40, 7, 8, 9}, 2, 9), (Tokens{10}));
}

// The prompt's own tokens do not resume the prediction.
TEST(Lookup, ThePromptIsNotTheAnswer) {
  const Tokens prediction = {5, 6, 7, 8, 9, 10};
  Lookup lookup(prediction);
  EXPECT_EQ(drafts_of(lookup, {7, 8, 40}, 2, 3), Tokens());
}

// The index forgets, and never finds what is not there.
TEST(NgramIndex, FindsOnlyWhatIsThere) {
  Rng rng(1);
  Tokens text;
  NgramIndex index(3);
  int64_t found = 0;
  for (int i = 0; i < 4000; ++i) {
    text.push_back(static_cast<int32_t>(rng.below(12)));
    index.extend(text);
    const size_t end = index.find(text, text);
    if (end == 0) continue;
    ++found;
    ASSERT_LT(end, text.size());
    ASSERT_TRUE(
        std::equal(text.end() - 3, text.end(), text.begin() + static_cast<int64_t>(end) - 3));
  }
  EXPECT_GT(found, 2000);
}

}  // namespace
}  // namespace dsv4
