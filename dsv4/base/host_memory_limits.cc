#include "dsv4/base/host_memory_limits.h"

#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>

#include "dsv4/base/size_text.h"

namespace dsv4 {
namespace {

constexpr int64_t kNone = HostMemoryLimits::kNoLimit;

// The number after `key` in a file of lines "key number"; kNone: there is none.
int64_t field(const std::string& file, const std::string& key) {
  std::ifstream in(file);
  std::string word;
  while (in >> word) {
    int64_t value = 0;
    if (word == key && in >> value) return value;
    in.ignore(1 << 16, '\n');
  }
  return kNone;
}

// A file that holds one number, or the word "max".
int64_t number(const std::string& file) {
  int64_t value = 0;
  return std::ifstream(file) >> value ? value : kNone;
}

std::string limit_text(int64_t bytes) {
  return bytes == kNone ? "unlimited" : size_text(bytes);
}

}  // namespace

std::string HostMemoryLimits::text() const {
  return fmt::format("ulimit -l is {}, memory.max of the cgroup is {}", limit_text(locked_bytes),
                     limit_text(cgroup_bytes));
}

std::string HostMemoryLimits::lock_refused(int64_t bytes, int64_t locked_before,
                                           const std::string& reason) const {
  return fmt::format(
      "cannot page-lock {} of host memory after {} ({}): {}; raise the limit (ulimit -l unlimited, "
      "docker run --ulimit memlock=-1, the memory of the pod) or give less to experts "
      "(--host-memory)",
      size_text(bytes, 2), size_text(locked_before, 2), reason, text());
}

HostMemoryLimits host_memory_limits(const std::string& root) {
  HostMemoryLimits limits;
  if (const int64_t kib = field(root + "/proc/meminfo", "MemAvailable:"); kib != kNone)
    limits.available_bytes = kib << 10;
  const std::string group = root + "/sys/fs/cgroup/";
  limits.cgroup_bytes = number(group + "memory.max");
  if (limits.cgroup_bytes != kNone) {
    const int64_t used = number(group + "memory.current"),
                  cached = field(group + "memory.stat", "inactive_file");
    // The system drops pages of files that nothing used lately.
    const int64_t held = used == kNone ? 0 : used - (cached == kNone ? 0 : cached);
    limits.available_bytes =
        std::min(limits.available_bytes, std::max<int64_t>(limits.cgroup_bytes - held, 0));
  }
  rlimit locked{};
  if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur != RLIM_INFINITY)
    limits.locked_bytes = static_cast<int64_t>(locked.rlim_cur);
  return limits;
}

}  // namespace dsv4
