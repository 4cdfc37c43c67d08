// What the system says about host memory: how much a program can take now, and how much of it may
// be page-locked. Linux; a number that the system does not give is kNoLimit.
//
//   available = min(MemAvailable, memory.max - memory.current + inactive_file)
//
// The second term is that of the cgroup which a container shows as its root (version 2): the pages
// of files that nothing used lately are dropped when memory is wanted. Drivers lock pages for the
// GPU beyond `ulimit -l` on most machines, and inside most containers they do not.

#pragma once

#include <cstdint>
#include <string>

namespace dsv4 {

struct HostMemoryLimits {
  static constexpr int64_t kNoLimit = INT64_MAX;

  int64_t available_bytes = kNoLimit;  // MemAvailable, or what the cgroup leaves if that is less
  int64_t cgroup_bytes = kNoLimit;  // memory.max of the cgroup that a container shows as its root
  int64_t locked_bytes = kNoLimit;  // `ulimit -l`

  // "ulimit -l is 8.0 MiB, memory.max of the cgroup is 4.0 GiB"
  std::string text() const;
  // What to say when the system, for this reason, does not lock so many bytes beside those that it
  // has locked: the sizes, these limits and what to do.
  std::string lock_refused(int64_t bytes, int64_t locked_before, const std::string& reason) const;
};

// root: of /proc and /sys, for tests
HostMemoryLimits host_memory_limits(const std::string& root = "");

}  // namespace dsv4
