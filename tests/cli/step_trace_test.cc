#include "apps/step_trace.h"

#include <gtest/gtest.h>

namespace dsv4::apps {
namespace {

TEST(StepTrace, ExposedTimesAddUpToTheStep) {
  // b starts early and ends last of the first three; c ends before b; d starts after a gap.
  const auto report =
      trace_report({{"a", 10, 5, 1}, {"b", 12, 8, 2}, {"c", 13, 4, 3}, {"b", 22, 6, 4}});
  EXPECT_EQ(report["wall_us"], 18);
  EXPECT_EQ(report["idle_us"], 2);
  EXPECT_EQ(report["overlap_us"], 3 + 7);
  const auto& kernels = report["kernels"];
  ASSERT_EQ(kernels.size(), 4u);
  const double exposed[] = {5, 5, 0, 8}, gaps[] = {0, -3, -7, 2}, starts[] = {0, 2, 3, 12};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(kernels[i]["start_us"], starts[i]) << i;
    EXPECT_EQ(kernels[i]["gap_us"], gaps[i]) << i;
    EXPECT_EQ(kernels[i]["exposed_us"], exposed[i]) << i;
    EXPECT_EQ(kernels[i]["ctas"], i + 1) << i;
  }
  const auto& by_kernel = report["by_kernel"];
  ASSERT_EQ(by_kernel.size(), 3u);
  EXPECT_EQ(by_kernel[0].dump(),
            R"({"kernel":"b","launches":2,"us":14.0,"gap_us":-1.0,"exposed_us":13.0})");
}

TEST(StepTrace, NoKernels) {
  const auto report = trace_report({});
  EXPECT_EQ(report["wall_us"], 0);
  EXPECT_TRUE(report["kernels"].empty());
}

}  // namespace
}  // namespace dsv4::apps
