// dsv4/device/ptx/named_barrier.cuh on the emulator.

#pragma once

#include "tests/emulator/instructions.h"

namespace dsv4::ptx {

inline void barrier_sync(int id, int threads) {
  emulator::barrier(id, threads, false);
}
inline void barrier_arrive(int id, int threads) {
  emulator::barrier_arrive(id, threads);
}
inline bool barrier_red_or(int id, int threads, bool predicate) {
  return emulator::barrier(id, threads, predicate);
}

}  // namespace dsv4::ptx
