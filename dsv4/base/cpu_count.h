// The CPUs that this process may use: those of its affinity mask, limited by the CPU quota of its
// control groups (cgroup v1 and v2). A container with a quota of 2 CPUs on a machine with 64 shows
// all 64 in its mask; threads beyond the quota only wait for each other.

#pragma once

#include <optional>
#include <string>

namespace dsv4 {

struct CpuCount {
  int allowed = 1;              // CPUs in the affinity mask
  std::optional<double> quota;  // CPUs of the tightest quota, such as 1.5; none: unlimited
  // Threads worth starting, at least 1: a quota of 1.5 CPUs is used up by 2 threads.
  int threads() const;
};

// `root` precedes /proc and /sys, so that a test can bring its own files. What cannot be read does
// not limit.
CpuCount usable_cpus(const std::string& root = "");

}  // namespace dsv4
