// dsv4/device/ptx/global_flag.cuh on the emulator. A thread that waits sleeps until the counter has
// changed: copies that complete as late as possible would never complete beside a loop.
//
// The proxy fence that a reader by bulk copies needs (fence_proxy_async_global) is not checked, nor
// are scopes: memory is sequentially consistent here. What a missing counter does is found, since
// the copy then reads bytes that have not been written: experts_grouped_emulated_test fails without
// the wait of the producer of x.

#pragma once

#include <cstdint>

#include "tests/emulator/instructions.h"

namespace dsv4::ptx {

// A release on the device.
inline void add_release(int32_t* counter, int32_t value) {
  emulator::counter_add(counter, value);
}
// An acquire on the device.
inline void wait_at_least(const int32_t* counter, int32_t least) {
  emulator::counter_wait(counter, least);
}

// A clock that advances by a nanosecond at every read, so what a kernel measures is how often it
// was read meanwhile. One thread of the host runs a launch: no lock is needed.
inline int64_t global_nanoseconds() {
  static int64_t time = 0;
  return ++time;
}

// Between devices. A flag that never comes is an error of the emulator, so `stop` and the time have
// no effect.
inline void raise_flag(int64_t* flag, int64_t value) {
  emulator::flag_raise(flag, value);
}
inline bool wait_for_flag(const int64_t* flag, int64_t least, const int64_t*, int64_t) {
  emulator::flag_wait(flag, least);
  return true;
}

}  // namespace dsv4::ptx
