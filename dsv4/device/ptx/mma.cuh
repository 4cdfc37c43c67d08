// Warp-level matrix instructions of sm_80 and newer, one function per instruction.
//
// mma_bf16: c [16, 8] f32 += a [16, 16] bf16 * b [16, 8] bf16. With g = lane / 4, j = lane % 4:
//
//   a[0] = A[g][2j, 2j+1]   a[1] = A[g+8][2j, 2j+1]   a[2] = A[g][2j+8, 2j+9]   a[3] = A[g+8][...]
//   b[0] = B[2j, 2j+1][g]   b[1] = B[2j+8, 2j+9][g]
//   c[0], c[1] = C[g][2j, 2j+1]                        c[2], c[3] = C[g+8][2j, 2j+1]
//
// ldmatrix_x4: four 8 x 8 matrices of 16-bit values; lane i gives the address of row i % 8 of
// matrix i / 8 (16 bytes, aligned) and gets values [g][2j, 2j+1] of each; transposed: [2j,
// 2j+1][g].

#pragma once

#include <cstdint>

#include "dsv4/device/ptx/operands.cuh"

namespace dsv4::ptx {

__device__ inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// In a cluster, bits 24 and up are the block's rank.
__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ inline uint32_t offset_in_block(uint32_t shared_address) {
  return shared_address & ((1u << 24) - 1);
}

__device__ inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}
__device__ inline void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  ldmatrix_x4(r, shared_address(row));
}
__device__ inline void ldmatrix_x4_transposed(uint32_t (&r)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}
__device__ inline void ldmatrix_x4_transposed(uint32_t (&r)[4], const void* row) {
  ldmatrix_x4_transposed(r, shared_address(row));
}

// The inverse: 8 x 8 matrices of lanes' values [2j, 2j+1][g] to rows at an address of shared memory
// (sm_90).
__device__ inline void stmatrix_x2_transposed(uint32_t row, uint32_t r0, uint32_t r1) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(row), "r"(r0),
               "r"(r1)
               : "memory");
}
__device__ inline void stmatrix_x4_transposed(uint32_t row, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// 16, 8 or 4 bytes from global to shared memory in the background.
template <int kBytes>
__device__ inline void cp_async(void* to, const void* from) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(to)), "l"(from),
                 "n"(kBytes)
                 : "memory");
  }
}
// Until all that this thread started has arrived; other threads see it after a barrier.
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace dsv4::ptx
