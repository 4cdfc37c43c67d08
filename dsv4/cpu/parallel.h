// When an OpenMP region pays.

#pragma once

#include <cstdint>

namespace dsv4::cpu {

// For the `if` clause of a parallel region: waking the threads and meeting at the end costs some
// microseconds, in which one core does about this many vectorised operations on f32.
constexpr bool worth_sharing(int64_t operations) {
  return operations > (int64_t{1} << 17);
}

}  // namespace dsv4::cpu
