// dsv4/device/ptx/stmatrix.cuh on the emulator.

#pragma once

#include "dsv4/device/ptx/shared_memory.cuh"

namespace dsv4::ptx {

inline void stmatrix_x4(void* row, const uint32_t (&r)[4]) {
  emulator::store_matrices(r, smem_address(row), 4, false);
}

}  // namespace dsv4::ptx
