// Names in messages, and what every thread waits for.

#include <map>

#include "tests/emulator/machine.h"

namespace dsv4::emulator {
namespace {

std::string cta_name(const Cta& cta) {
  const Grid& grid = *cta.cluster->grid;
  std::string name;
  if (machine().grids.size() > 1) name = fmt::format("kernel {} ", grid.number);
  const Dim3& extent = grid.launch().grid;
  if (extent.y * extent.z == 1) return name + fmt::format("CTA {}", cta.index);
  return name + fmt::format("CTA {},{},{}", cta.position.x, cta.position.y, cta.position.z);
}

// 0 2-5 7
std::string ranges(const std::vector<int>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size(); ++i) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += last == i ? fmt::format(" {}", numbers[i])
                      : fmt::format(" {}-{}", numbers[i], numbers[last]);
    i = last;
  }
  return text;
}

}  // namespace

std::string thread_name(const Thread& thread) {
  return fmt::format("{} thread {}:", cta_name(*thread.cta), thread.index);
}

std::string Machine::reason(const Thread& thread) {
  const Wait& waits = thread.waits;
  switch (waits.kind) {
    case Wait::kLanes: {
      const auto& warp = *static_cast<const Warp*>(waits.where);
      return fmt::format("at {}, with {} lanes of {}", warp.op, warp.arrived, warp.size);
    }
    case Wait::kBarrier: {
      const auto& barrier = *static_cast<const Barrier*>(waits.where);
      return fmt::format("at {}, with {} threads of {}", barrier.name, barrier.arrived,
                         barrier.expected);
    }
    case Wait::kGrid:
      return fmt::format("at griddepcontrol.wait for kernel {}",
                         static_cast<const Grid*>(waits.where)->number);
    case Wait::kCounter:
      return fmt::format("for {} in a counter of {}", waits.parity,
                         *static_cast<const int32_t*>(waits.where));
    case Wait::kMbarrier:
      break;
  }
  return fmt::format("for parity {} of the mbarrier at {}: {}", waits.parity, waits.address,
                     describe_mbarrier({thread.cta, waits.address}));
}

// Threads with the same reason together.
std::string Machine::deadlock() {
  std::map<std::string, std::vector<int>> waiting;
  for (const Cluster& cluster : clusters_) {
    for (const Cta& cta : cluster.ctas) {
      for (const Thread& thread : cta.threads) {
        if (!thread.ended)
          waiting[fmt::format("{}: waits {}", cta_name(cta), reason(thread))].push_back(
              thread.index);
      }
    }
  }
  std::string report;
  for (const auto& [reason, threads] : waiting)
    report += fmt::format("{}; threads{}\n", reason, ranges(threads));
  return report;
}

}  // namespace dsv4::emulator
