#include "dsv4/base/cpu_count.h"

#include <gtest/gtest.h>
#include <sched.h>

#include "tests/harness/temp_folder.h"

namespace dsv4 {
namespace {

// A machine's /proc and /sys with the given files.
class CpuQuota : public testing::Test {
 protected:
  void file(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(folder_.file(path)).parent_path());
    folder_.write(path, text);
  }
  std::optional<double> quota() const { return usable_cpus(folder_.path()).quota; }

  test::TempFolder folder_;
};

TEST_F(CpuQuota, NoControlGroupsMeansNoQuota) {
  EXPECT_EQ(quota(), std::nullopt);
}

TEST_F(CpuQuota, VersionTwo) {
  file("proc/self/cgroup", "0::/\n");
  file("sys/fs/cgroup/cpu.max", "150000 100000\n");
  EXPECT_EQ(quota(), 1.5);
}

TEST_F(CpuQuota, MaxIsUnlimited) {
  file("proc/self/cgroup", "0::/\n");
  file("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(quota(), std::nullopt);
}

TEST_F(CpuQuota, TheTightestParentCounts) {
  file("proc/self/cgroup", "0::/user.slice/session.scope\n");
  file("sys/fs/cgroup/user.slice/session.scope/cpu.max", "800000 100000\n");
  file("sys/fs/cgroup/user.slice/cpu.max", "200000 100000\n");
  EXPECT_EQ(quota(), 2.0);
}

TEST_F(CpuQuota, VersionOne) {
  file("proc/self/cgroup", "5:memory:/a\n4:cpu,cpuacct:/docker/0123\n");
  file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "300000\n");
  file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), 3.0) << "inside a container only the mount itself has files";
  file("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(quota(), std::nullopt);
}

TEST_F(CpuQuota, GarbageDoesNotLimit) {
  file("proc/self/cgroup", "no colons\n0::/\n");
  file("sys/fs/cgroup/cpu.max", "-3 0\n");
  EXPECT_EQ(quota(), std::nullopt);
}

TEST(CpuCount, ThreadsFitMaskAndQuota) {
  EXPECT_EQ((CpuCount{.allowed = 8, .quota = {}}.threads()), 8);
  EXPECT_EQ((CpuCount{.allowed = 8, .quota = 1.5}.threads()), 2);
  EXPECT_EQ((CpuCount{.allowed = 8, .quota = 0.1}.threads()), 1);
  EXPECT_EQ((CpuCount{.allowed = 2, .quota = 1e300}.threads()), 2);
}

TEST(CpuCount, FollowsTheAffinityMask) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &before)) continue;
    CPU_SET(cpu, &one);
    break;
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(usable_cpus().allowed, 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
  EXPECT_EQ(usable_cpus().allowed, CPU_COUNT(&before));
}

}  // namespace
}  // namespace dsv4
