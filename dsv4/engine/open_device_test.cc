#include <gtest/gtest.h>

#include "dsv4/device/shared_gpu.h"
#include "dsv4/engine/device_model.h"
#if DSV4_CUDA
#include "dsv4/device/cublas_lt.h"
#endif

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

TEST(DefaultDevice, AllRanksOfAListAreOnTheCpuOrNone) {
  for (const char* name : {"cpu", "cpu,cpu", "processes:cpu"}) EXPECT_TRUE(on_cpu(name)) << name;
  for (const char* name : {"cuda", "cuda:0,cuda:1", "processes", "processes:0,1"})
    EXPECT_FALSE(on_cpu(name)) << name;
}

#if !DSV4_CUDA
TEST(DefaultDevice, IsTheCpuInABuildWithoutGpus) {
  EXPECT_EQ(default_device(), "cpu");
  EXPECT_EQ(open_device("auto"), nullptr);
}
#else
// Two ranks would wait for each other: one in a kernel, the other for the kernel that is loaded, or
// for an SM that is free.
TEST(SharedGpus, HaveNoProductsOfCublasLtNorKernelsThatFillSms) {
  const std::unique_ptr<Device> hopper = Device::dry_run({.name = "H", .major = 9, .num_sms = 132});
  const LtShape shape{
      .t = 64, .n = 64, .k = 64, .x_stride = 64, .weight_stride = 64, .out_stride = 64};
  devices_of_gpus("0,1");
  EXPECT_EQ(lt_reject(*hopper, shape), nullptr);
  EXPECT_FALSE(gpus_are_shared());
  devices_of_gpus("1,0,1");
  EXPECT_NE(lt_reject(*hopper, shape), nullptr);
  EXPECT_TRUE(gpus_are_shared());
}
#endif

}  // namespace
}  // namespace dsv4
