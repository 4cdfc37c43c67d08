// The clock of a GPU in nanoseconds, as %globaltimer has it.
//
// All multiprocessors of a GPU read the same clock. It does not advance with every cycle: on a
// Hopper GPU the value changes about every microsecond, or every 32 nanoseconds, as the driver has
// set it. A time between two reads is therefore wrong by as much, in either direction; a sum of
// many times is right on average, because where a read falls between two changes is chance.
//
// Clocks of two GPUs are not compared: they are set by the host, and differ. Nothing waits by this
// clock for longer than it takes to notice
// that another rank does not come.
//
// %clock64 would be finer, but it counts cycles of one multiprocessor, whose frequency changes.

#pragma once

#include <cstdint>

namespace dsv4::ptx {

__device__ inline int64_t global_nanoseconds() {
  int64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

}  // namespace dsv4::ptx
