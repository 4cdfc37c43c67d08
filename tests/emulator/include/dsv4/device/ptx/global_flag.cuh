// dsv4/device/ptx/global_flag.cuh on the emulator.

#pragma once

#include <cstdint>

#include "tests/emulator/instructions.h"

namespace dsv4::ptx {

inline void add_release(int32_t* counter, int32_t value) {
  emulator::counter_add(counter, value);
}
inline void wait_at_least(const int32_t* counter, int32_t least) {
  emulator::counter_wait(counter, least);
}

}  // namespace dsv4::ptx
