// dsv4/device/ptx/ldmatrix.cuh on the emulator.

#pragma once

#include "dsv4/device/ptx/shared_memory.cuh"

namespace dsv4::ptx {

inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t row) {
  emulator::load_matrices(r, row, false);
}
inline void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  ldmatrix_x4(r, smem_address(row));
}
inline void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t row) {
  emulator::load_matrices(r, row, true);
}
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  ldmatrix_x4_trans(r, smem_address(row));
}

inline void stmatrix_x2_trans(uint32_t row, uint32_t r0, uint32_t r1) {
  const uint32_t r[2] = {r0, r1};
  emulator::store_matrices(r, row, 2, true);
}
inline void stmatrix_x4_trans(uint32_t row, const uint32_t (&r)[4]) {
  emulator::store_matrices(r, row, 4, true);
}

}  // namespace dsv4::ptx
