// How calls of CUDA rows are timed.

#pragma once

#include <functional>

#include "dsv4/device/device.h"

namespace dsv4::bench {

struct Timing {
  double median_s = 0, fastest_s = 0;  // of one call
  int calls = 0, replays = 0;
};

// Times `call`, enqueued as often as makes some milliseconds into one graph, which is replayed.
Timing time_calls(Device& device, const std::function<void()>& call);

}  // namespace dsv4::bench
