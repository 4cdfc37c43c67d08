// Decides when an OpenMP region is worth its overhead.

#pragma once

#include <cstdint>

namespace dsv4::cpu {

// Starting the threads and the barrier at the end take some microseconds, in which one core
// executes about this many vectorized operations on f32. It is a variable so that the test harness
// can set it to 0, which makes every region parallel, however small the case.
inline int64_t sharing_threshold = int64_t{1} << 20;

// For the `if` clause of a parallel region.
inline bool worth_sharing(int64_t operations) {
  return operations > sharing_threshold;
}

}  // namespace dsv4::cpu
