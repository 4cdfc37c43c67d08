#include "dsv4/base/cpu_count.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <thread>

namespace dsv4 {
namespace {

int allowed_cpus() {
  // Machines with more CPUs than a cpu_set_t holds refuse the small mask.
  cpu_set_t mask;
  CPU_ZERO(&mask);
  const int count = sched_getaffinity(0, sizeof(mask), &mask) == 0 ? CPU_COUNT(&mask) : 0;
  return count > 0 ? count : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// "150000 100000" of cgroup v2: microseconds per period; "max 100000": unlimited.
std::optional<double> read_v2(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  double quota = 0, period = 0;
  if (!(file >> quota >> period) || !(quota > 0) || !(period > 0)) return std::nullopt;
  return quota / period;
}

// Two files of cgroup v1; a quota of -1: unlimited.
std::optional<double> read_v1(const std::string& folder) {
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us"),
      period_file(folder + "/cpu.cfs_period_us");
  double quota = 0, period = 0;
  if (!(quota_file >> quota) || !(period_file >> period) || !(quota > 0) || !(period > 0))
    return std::nullopt;
  return quota / period;
}

using Reader = std::optional<double> (*)(const std::string&);

// The tightest quota of the group `path` below `mount` and of its parents up to the mount. Inside a
// container the path may be the host's, of which only the mount itself exists.
std::optional<double> tightest(const std::string& mount, std::string path, Reader read) {
  std::optional<double> least;
  while (true) {
    if (const auto quota = read(mount + path)) least = least ? std::min(*least, *quota) : *quota;
    if (path.empty()) return least;
    path.resize(path.find_last_of('/') == std::string::npos ? 0 : path.find_last_of('/'));
  }
}

bool holds_cpu(const std::string& controllers) {
  std::istringstream list(controllers);
  for (std::string name; std::getline(list, name, ',');) {
    if (name == "cpu") return true;
  }
  return false;
}

// Lines of /proc/self/cgroup: "0::/path" of v2, "4:cpu,cpuacct:/path" of v1.
std::optional<double> quota_cpus(const std::string& root) {
  std::optional<double> least;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    const std::string mount = root + "/sys/fs/cgroup";
    const auto quota = controllers.empty()      ? tightest(mount, path, read_v2)
                       : holds_cpu(controllers) ? tightest(mount + "/" + controllers, path, read_v1)
                                                : std::nullopt;
    if (quota) least = least ? std::min(*least, *quota) : *quota;
  }
  return least;
}

}  // namespace

int CpuCount::threads() const {
  const double limit = quota ? std::ceil(*quota) : allowed;
  return std::max(1, static_cast<int>(std::min<double>(allowed, limit)));
}

CpuCount usable_cpus(const std::string& root) {
  return {.allowed = allowed_cpus(), .quota = quota_cpus(root)};
}

}  // namespace dsv4
