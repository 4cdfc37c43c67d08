// What a GPU can do at best, measured in the same run as the benchmarks, and how calls are timed.

#pragma once

#include <functional>

#include "dsv4/device/device.h"

namespace dsv4::bench {

struct GpuRoofs {
  double copy_bytes_per_s = 0;    // read and written, of a copy of 1 GiB in device memory
  double matrix_flops_per_s = 0;  // bf16, cuBLASLt, 8192^3; 0 without the library
};

GpuRoofs measure_roofs(Device& device);

struct Timing {
  double median_s = 0, fastest_s = 0;  // of one call
  int calls = 0, replays = 0;
};

// Times `call`, enqueued as often as makes some milliseconds into one graph, which is replayed.
Timing time_calls(Device& device, const std::function<void()>& call);

}  // namespace dsv4::bench
