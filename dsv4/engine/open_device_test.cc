#include <gtest/gtest.h>

#include "dsv4/engine/device_model.h"

namespace dsv4 {
namespace {

// The machines of this test have the GPUs that it says, of which some are too old.
TEST(DefaultDevice, IsTheFirstGpuThatCanBeUsed) {
  EXPECT_EQ(default_device(std::vector<bool>{}), "cpu");
  EXPECT_EQ(default_device({true}), "cuda");
  EXPECT_EQ(default_device({true, true}), "cuda");
  EXPECT_EQ(default_device({false}), "cpu");
  EXPECT_EQ(default_device({false, true, true}), "cuda:1");
  EXPECT_EQ(default_device({false, false, false, true}), "cuda:3");
}

#if !DSV4_CUDA
TEST(DefaultDevice, IsTheCpuInABuildWithoutGpus) {
  EXPECT_EQ(default_device(), "cpu");
  EXPECT_EQ(open_device("auto"), nullptr);
}
#endif

}  // namespace
}  // namespace dsv4
