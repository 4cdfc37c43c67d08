// The line of a progress bar fits the terminal: a longer one wraps, and every update scrolls.

#include "apps/progress.h"

#include <gtest/gtest.h>

namespace dsv4::apps {
namespace {

const ProgressState kHalf{.what = "quantizing", .share = 0.5, .rates = "1.2 GB/s", .left = "3 min"};

TEST(ProgressLine, HasABarWhereThereIsRoom) {
  EXPECT_EQ(progress_line(kHalf, 200),
            "quantizing [###############...............]  50%  1.2 GB/s  3 min left");
}

TEST(ProgressLine, IsShorterThanTheTerminal) {
  for (size_t columns = 0; columns <= 100; ++columns)
    EXPECT_LT(progress_line(kHalf, columns).size(), std::max<size_t>(columns, 1)) << columns;
}

TEST(ProgressLine, TheBarShrinksFirst) {
  const std::string narrow = progress_line(kHalf, 55), none = progress_line(kHalf, 40);
  EXPECT_NE(narrow.find("#."), std::string::npos) << narrow;
  EXPECT_NE(narrow.find("3 min left"), std::string::npos) << narrow;
  EXPECT_EQ(none, "quantizing  50%  1.2 GB/s  3 min left");
}

TEST(ProgressLine, TakesAnyShare) {
  ProgressState now = kHalf;
  now.share = 0;
  EXPECT_EQ(progress_line(now, 100).find('#'), std::string::npos);
  now.share = 1;
  EXPECT_EQ(progress_line(now, 100).find(".]"), std::string::npos);
}

}  // namespace
}  // namespace dsv4::apps
