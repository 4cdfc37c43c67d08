#include "dsv4/plan/machine.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>

#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

constexpr int kMaxDevices = 64;
constexpr int64_t kGpuReserve = 6 * kGiB, kHostReserve = kGiB;

struct Gpu {
  const char* name;
  int64_t bytes;  // that a program can take: below the size on the box
};
constexpr Gpu kGpus[] = {{"h100", 78 * kGiB}, {"h200", 139 * kGiB}};

// Physical memory, or less where a container is given less.
int64_t host_bytes() {
  int64_t bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  int64_t limit = 0;  // the file holds the word "max" where there is no limit
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit && limit > 0)
    bytes = std::min(bytes, limit);
  return bytes;
}

Machine gpus(int count, const Gpu& gpu) {
  return {.name = fmt::format("{}x{}", count, gpu.name),
          .devices = count,
          .device_bytes = gpu.bytes,
          .reserve_bytes = kGpuReserve};
}

Machine host() {
  return {.name = "cpu", .device_bytes = host_bytes(), .reserve_bytes = kHostReserve, .host = true};
}

}  // namespace

Machine parse_machine(const std::string& name) {
  if (name == "cpu") return host();
  int count = 0;
  const char* end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data(), end, count);
  if (error == std::errc() && count >= 1 && count <= kMaxDevices && rest != end && *rest == 'x') {
    for (const Gpu& gpu : kGpus) {
      if (std::string_view(rest + 1, static_cast<size_t>(end - rest - 1)) == gpu.name)
        return gpus(count, gpu);
    }
  }
  fail(ErrorCode::kBadInput,
       "no machine '{}': want cpu, or 1 to {} of h100 or h200, such as 2xh200", name, kMaxDevices);
}

std::vector<Machine> known_machines() {
  std::vector<Machine> machines = {host()};
  for (const Gpu& gpu : kGpus) {
    for (const int count : {1, 2, 4, 8}) machines.push_back(gpus(count, gpu));
  }
  return machines;
}

}  // namespace dsv4
