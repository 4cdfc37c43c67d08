// ldmatrix (sm_75) and stmatrix (sm_90): 8 x 8 matrices of 16-bit values between shared memory and
// the fragments of a warp.
//
// Lane i gives the address of row i % 8 of matrix i / 8 (16 bytes, aligned). With g = lane / 4 and
// j = lane % 4 it holds the values [g][2j, 2j+1] of each matrix; .trans: [2j, 2j+1][g].

#pragma once

#include <cstdint>

#include "dsv4/device/ptx/shared_memory.cuh"

namespace dsv4::ptx {

__device__ inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}
__device__ inline void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  ldmatrix_x4(r, smem_address(row));
}
__device__ inline void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}
__device__ inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  ldmatrix_x4_trans(r, smem_address(row));
}

__device__ inline void stmatrix_x2_trans(uint32_t row, uint32_t r0, uint32_t r1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(row), "r"(r0),
               "r"(r1)
               : "memory");
}
__device__ inline void stmatrix_x4_trans(uint32_t row, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

}  // namespace dsv4::ptx
