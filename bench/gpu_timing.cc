#include "bench/gpu_timing.h"

#include <algorithm>
#include <vector>

#include "dsv4/device/event.h"
#include "dsv4/device/graph.h"

namespace dsv4::bench {
namespace {

constexpr double kGraphSeconds = 4e-3;
constexpr int kMaxCalls = 64, kReplays = 21;

double seconds(Device& device, const std::function<void()>& enqueue) {
  Event start, end;
  start.record(device.stream());
  enqueue();
  end.record(device.stream());
  end.wait();
  return end.seconds_since(start);
}

}  // namespace

Timing time_calls(Device& device, const std::function<void()>& call) {
  call();  // loads code, allocates workspace
  const double once = seconds(device, call);
  Timing timing{.calls = static_cast<int>(std::clamp(kGraphSeconds / once, 1.0, 1.0 * kMaxCalls)),
                .replays = kReplays};
  const Graph graph = Graph::capture(device, [&] {
    for (int i = 0; i < timing.calls; ++i) call();
  });
  graph.launch(device);
  std::vector<double> times;
  for (int i = 0; i < kReplays; ++i)
    times.push_back(seconds(device, [&] { graph.launch(device); }) / timing.calls);
  std::sort(times.begin(), times.end());
  timing.median_s = times[times.size() / 2];
  timing.fastest_s = times.front();
  return timing;
}

}  // namespace dsv4::bench
