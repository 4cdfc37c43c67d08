// When an OpenMP region pays.

#pragma once

#include <cstdint>

namespace dsv4::cpu {

// Waking the threads and meeting at the end costs some microseconds, in which one core does about
// this many vectorised operations on f32. A variable so that the test harness can set it to 0: then
// every region is shared, however small the case.
inline int64_t sharing_threshold = int64_t{1} << 20;

// For the `if` clause of a parallel region.
inline bool worth_sharing(int64_t operations) {
  return operations > sharing_threshold;
}

}  // namespace dsv4::cpu
