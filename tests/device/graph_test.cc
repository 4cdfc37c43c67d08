// Capture, replay and update of graphs, and launch times.

#include "dsv4/device/graph.h"

#include <gtest/gtest.h>

#include "dsv4/base/error.h"
#include "dsv4/tensor/buffer.h"
#include "tests/device/test_kernels.h"

namespace dsv4 {
namespace {

class DeviceGraph : public testing::Test {
 protected:
  void SetUp() override {
    if (list_devices().empty()) GTEST_SKIP() << "no GPU";
    device_ = std::make_unique<Device>(0);
    cells_ = Buffer(DType::kI32, {2}, device_->memory());
  }
  void store(int cell, int32_t value) {
    test::store_value(*device_, cells_.as<int32_t>() + cell, value);
  }
  int32_t cell(int i) {
    int32_t value = 0;
    device_->memory().download(reinterpret_cast<std::byte*>(&value),
                               reinterpret_cast<std::byte*>(cells_.as<int32_t>() + i), 4);
    return value;
  }
  std::unique_ptr<Device> device_;
  Buffer cells_;
};

TEST_F(DeviceGraph, RunsOnLaunchNotOnCapture) {
  const Graph graph = Graph::capture(*device_, [&] { store(0, 7); });
  EXPECT_EQ(cell(0), 0);
  EXPECT_EQ(graph.num_kernels(), 1u);
  graph.launch(*device_);
  EXPECT_EQ(cell(0), 7);
}

TEST_F(DeviceGraph, UpdateChangesValuesAndKernels) {
  Graph graph = Graph::capture(*device_, [&] { store(0, 1); });
  graph.update(*device_, [&] { store(1, 2); });
  graph.launch(*device_);
  EXPECT_EQ(cell(0), 0);
  EXPECT_EQ(cell(1), 2);
  graph.update(*device_, [&] { store(0, 3), store(1, 4); });
  graph.launch(*device_);
  EXPECT_EQ(cell(0), 3);
  EXPECT_EQ(cell(1), 4);
}

TEST_F(DeviceGraph, FailedCaptureLeavesTheStreamUsable) {
  EXPECT_THROW(Graph::capture(*device_, [] { fail(ErrorCode::kBadInput, "half-way"); }), Error);
  store(0, 5);
  EXPECT_EQ(cell(0), 5);
}

TEST_F(DeviceGraph, LaunchesAreTimedByName) {
  device_->time_kernels(true);
  store(0, 1), store(1, 2);
  device_->wait();
  const auto times = device_->times()->take();
  ASSERT_EQ(times.count("store"), 1u);
  EXPECT_EQ(times.at("store").launches, 2);
  EXPECT_GT(times.at("store").seconds, 0);
  device_->time_kernels(false);
}

}  // namespace
}  // namespace dsv4
