// Timing of calls of CUDA implementations.

#pragma once

#include <functional>

#include "dsv4/device/device.h"

namespace dsv4::bench {

struct Timing {
  double median_s = 0, fastest_s = 0;  // per call
  int calls = 0, replays = 0;
};

// Times `call`: captures enough calls for some milliseconds in one graph and replays it.
Timing time_calls(Device& device, const std::function<void()>& call);

}  // namespace dsv4::bench
