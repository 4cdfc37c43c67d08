// dsv4/device/ptx/mma.cuh on the emulator.

#pragma once

#include "dsv4/device/ptx/operands.cuh"
#include "tests/emulator/instructions.h"

namespace dsv4::ptx {

inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulator::multiply(c, a, b0, b1);
}

inline uint32_t shared_address(const void* pointer) {
  return emulator::shared_address(pointer);
}
inline uint32_t offset_in_block(uint32_t shared_address) {
  return shared_address % emulator::kSharedWindow;
}

inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t row) {
  emulator::load_matrices(r, row, false);
}
inline void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  ldmatrix_x4(r, shared_address(row));
}
inline void ldmatrix_x4_transposed(uint32_t (&r)[4], uint32_t row) {
  emulator::load_matrices(r, row, true);
}
inline void ldmatrix_x4_transposed(uint32_t (&r)[4], const void* row) {
  ldmatrix_x4_transposed(r, shared_address(row));
}
inline void stmatrix_x2_transposed(uint32_t row, uint32_t r0, uint32_t r1) {
  const uint32_t r[2] = {r0, r1};
  emulator::store_matrices_transposed(r, row, 2);
}
inline void stmatrix_x4_transposed(uint32_t row, const uint32_t (&r)[4]) {
  emulator::store_matrices_transposed(r, row, 4);
}

template <int kBytes>
inline void cp_async(void* to, const void* from) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  emulator::copy(shared_address(to), from, kBytes, true);
}
inline void cp_async_wait() {
  emulator::wait_for_copies();
}

}  // namespace dsv4::ptx
