// Warpgroups of warp-specialized kernels on Hopper.

#pragma once

namespace dsv4::sm90 {

inline constexpr int kWarpgroup = 128;  // threads

// Registers per thread of two consumer warpgroups when the producer warpgroup keeps `producer`.
// setmaxnreg deadlocks if the sum exceeds the launch allocation: 168 for each of 384 threads.
constexpr int consumer_registers(int producer) {
  return (3 * 168 - producer) / 2;
}

}  // namespace dsv4::sm90
