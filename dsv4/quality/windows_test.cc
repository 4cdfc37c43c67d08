#include "dsv4/quality/windows.h"

#include <gtest/gtest.h>

#include <numeric>

#include "dsv4/base/error.h"
#include "dsv4/base/rng.h"
#include "tests/harness/errors.h"

namespace dsv4 {
namespace {

using Ids = std::vector<int32_t>;

Ids counting(int64_t n, int32_t from = 100) {
  Ids ids(static_cast<size_t>(n));
  std::iota(ids.begin(), ids.end(), from);
  return ids;
}

// "first token - last token, skip" of each window.
std::string describe(const Ids& ids, const WindowOptions& options) {
  std::string text;
  for (const Window& window : split_windows(ids, options)) {
    text += fmt::format("{}{}-{},{}", text.empty() ? "" : " ", window.text.front(),
                        window.text.back(), window.skip);
  }
  return text;
}

TEST(Windows, MatchesTheHeaderExample) {
  EXPECT_EQ(describe(counting(11, 0), {.context = 8, .stride = 4, .bos = 99}), "0-6,0 4-10,3");
  EXPECT_EQ(describe(counting(15, 0), {.context = 8}), "0-7,1 7-14,1");
  EXPECT_EQ(describe(counting(14, 0), {.context = 8, .bos = 99}), "0-6,0 7-13,0");
  EXPECT_EQ(describe(counting(15, 0), {.context = 8, .bos = 99}), "0-6,0 7-13,0 14-14,0");
}

TEST(Windows, BosStartsADocument) {
  const WindowOptions options{.context = 4, .bos = 9};
  EXPECT_EQ(describe({9, 1, 2, 9, 9, 3, 9}, options), "1-2,0 3-3,0");
  EXPECT_EQ(describe({1, 2, 3, 4, 9, 5}, options), "1-3,0 4-4,0 5-5,0");
  EXPECT_EQ(describe({9, 9}, options), "");
}

TEST(Windows, NothingToCount) {
  EXPECT_EQ(describe({}, {.context = 8}), "");
  EXPECT_EQ(describe({5}, {.context = 8}), "") << "a first token has no predecessor";
  EXPECT_EQ(describe({5}, {.context = 2, .bos = 0}), "5-5,0");
  EXPECT_EQ(describe({5, 6}, {.context = 2}), "5-6,1");
}

TEST(Windows, RejectsOptionsThatCountNothing) {
  const auto error = [](const WindowOptions& options) {
    return test::error_of(ErrorCode::kBadInput, [&] { split_windows({}, options); });
  };
  EXPECT_EQ(error({.context = 1, .bos = 0}), "a context of 1 tokens predicts nothing");
  EXPECT_EQ(error({.context = 8, .stride = 8}),
            "a stride of 8 does not fit a context of 8: want 1 to 7");
  EXPECT_EQ(error({.context = 8, .stride = -1, .bos = 0}),
            "a stride of -1 does not fit a context of 8: want 1 to 7");
}

// For any sizes: every token except a first one without BOS is a target once, in order, predicted
// from its predecessor; no window is longer than the context; a step has at most a chunk of tokens.
TEST(Windows, EveryTokenIsPredictedOnce) {
  Rng rng(1);
  for (int round = 0; round < 300; ++round) {
    const int64_t total = rng.below(200), context = 2 + rng.below(40);
    const int64_t stride = rng.below(context), chunk = 1 + rng.below(50);
    const int32_t bos = rng.below(2) == 0 ? -1 : 7;
    const Ids ids = counting(total);
    const std::vector<Window> windows =
        split_windows(ids, {.context = context, .stride = stride, .bos = bos});
    Ids seen;
    int64_t length = 0, windows_seen = 0;
    int32_t last = 0;
    for_each_piece(windows, bos, chunk, [&](const Piece& piece) {
      ASSERT_LE(piece.ids.size(), static_cast<size_t>(chunk));
      ASSERT_TRUE(piece.targets.empty() || piece.targets.size() == piece.ids.size());
      if (piece.fresh) {
        length = 0;
        ++windows_seen;
        ASSERT_TRUE(bos < 0 || piece.ids.front() == bos);
      } else {
        ASSERT_EQ(piece.ids.front(), last == bos ? piece.ids.front() : last + 1);
      }
      ASSERT_EQ(piece.position, length);
      ASSERT_EQ(piece.window, windows_seen - 1);
      length += static_cast<int64_t>(piece.ids.size());
      ASSERT_LT(length, context);  // the window's last token is only a target
      last = piece.ids.back();
      for (size_t i = 0; i < piece.targets.size(); ++i) {
        ASSERT_TRUE(piece.ids[i] == bos || piece.targets[i] == piece.ids[i] + 1);
        seen.push_back(piece.targets[i]);
      }
    });
    Ids want = ids;
    if (bos < 0 && !want.empty()) want.erase(want.begin());
    EXPECT_EQ(seen, want) << total << " tokens, context " << context << ", stride " << stride;
    EXPECT_EQ(num_counted(windows), static_cast<int64_t>(want.size()));
  }
}

}  // namespace
}  // namespace dsv4
