#include "dsv4/base/host_memory_limits.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace dsv4 {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kGib = int64_t{1} << 30;

class HostMemoryLimitsTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) /
            testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const char* file, const std::string& text) {
    const fs::path path = root_ / file;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  HostMemoryLimits limits() const { return host_memory_limits(root_.string()); }

  fs::path root_;
};

TEST_F(HostMemoryLimitsTest, TakesTheMachinesMemory) {
  write("proc/meminfo", "MemTotal:       1048576 kB\nMemAvailable:   524288 kB\n");
  write("sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(limits().available_bytes, kGib / 2);
  EXPECT_EQ(limits().cgroup_bytes, HostMemoryLimits::kNoLimit);
}

// What the cgroup uses counts, except files that the system can drop.
TEST_F(HostMemoryLimitsTest, TakesWhatTheCgroupLeaves) {
  write("proc/meminfo", "MemAvailable:   104857600 kB\n");
  write("sys/fs/cgroup/memory.max", std::to_string(8 * kGib));
  write("sys/fs/cgroup/memory.current", std::to_string(5 * kGib));
  EXPECT_EQ(limits().available_bytes, 3 * kGib);
  write("sys/fs/cgroup/memory.stat", "anon 7\ninactive_file " + std::to_string(2 * kGib) + "\n");
  EXPECT_EQ(limits().available_bytes, 5 * kGib);
  EXPECT_EQ(limits().cgroup_bytes, 8 * kGib);
  write("sys/fs/cgroup/memory.current", std::to_string(20 * kGib));
  EXPECT_EQ(limits().available_bytes, 0);
}

TEST_F(HostMemoryLimitsTest, KnowsNothingWithoutFiles) {
  EXPECT_EQ(limits().available_bytes, HostMemoryLimits::kNoLimit);
}

TEST_F(HostMemoryLimitsTest, SaysTheLimits) {
  EXPECT_EQ((HostMemoryLimits{.cgroup_bytes = 4 * kGib, .locked_bytes = 8 << 20}).text(),
            "ulimit -l is 8.0 MiB, memory.max of the cgroup is 4.0 GiB");
  EXPECT_EQ(HostMemoryLimits{}.text(),
            "ulimit -l is unlimited, memory.max of the cgroup is unlimited");
}

// One line with what was wanted, what there was, why not, and what to do.
TEST_F(HostMemoryLimitsTest, SaysWhyPagesAreNotLocked) {
  const HostMemoryLimits some{.cgroup_bytes = 64 * kGib, .locked_bytes = 8 << 20};
  EXPECT_EQ(some.lock_refused(kGib, 3 * kGib / 2, "out of memory"),
            "cannot page-lock 1.00 GiB of host memory after 1.50 GiB (out of memory): ulimit -l is "
            "8.0 MiB, memory.max of the cgroup is 64.0 GiB; raise the limit (ulimit -l unlimited, "
            "docker run --ulimit memlock=-1, the memory of the pod) or give less to experts "
            "(--host-memory)");
}

}  // namespace
}  // namespace dsv4
