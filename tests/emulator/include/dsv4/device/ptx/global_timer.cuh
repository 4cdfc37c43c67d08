// dsv4/device/ptx/global_timer.cuh on the emulator: a clock that advances by a nanosecond at every
// read, and never otherwise.
//
//   what a launch reads     the same times where it has the same seed
//   what a kernel measures  how often the clock was read meanwhile, by whichever thread: at least
//                           once, where it reads it after the end of what it measures
//   from launch to launch   the clock goes on, as that of a GPU does
//   devices of a launch     share the clock
//
// Tests compare with that bound and with nothing finer. Clocks of real GPUs differ; kernels that
// measure subtract two times of one GPU only.
//
// One thread of the host runs a launch, so the clock needs no lock.

#pragma once

#include <cstdint>

namespace dsv4::ptx {

inline int64_t global_nanoseconds() {
  static int64_t time = 0;
  return ++time;
}

}  // namespace dsv4::ptx
