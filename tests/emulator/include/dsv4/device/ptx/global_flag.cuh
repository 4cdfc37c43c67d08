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

}  // namespace dsv4::ptx
