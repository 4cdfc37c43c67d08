// dsv4/device/ptx/cache_hint.cuh on the emulator.

#pragma once

#include "tests/emulator/builtins.h"

namespace dsv4::ptx {

inline void ld_global_evict_first(const void* from, uint2& to) {
  emulator::load(from, &to, sizeof(to));
}
inline void ld_global_evict_first(const void* from, uint4& to) {
  emulator::load(from, &to, sizeof(to));
}

}  // namespace dsv4::ptx
