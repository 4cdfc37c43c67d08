// dsv4/device/ptx/fence.cuh on the emulator.

#pragma once

#include "tests/emulator/instructions.h"

namespace dsv4::ptx {

inline void fence_proxy_async() {
  emulator::fence_proxy_async();
}
inline void fence_proxy_async_global() {
}

}  // namespace dsv4::ptx
