// dsv4/device/ptx/thread.cuh on the emulator.

#pragma once

#include "tests/emulator/builtins.h"

namespace dsv4::ptx {

inline int thread_index() {
  return static_cast<int>(threadIdx.x);
}

inline int lane_id() {
  return thread_index() % 32;
}

template <class T>
T opaque(T x) {
  return x;
}

}  // namespace dsv4::ptx
