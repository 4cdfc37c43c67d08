// mma.sync (sm_80): the matrix product of a warp.
//
// mma_m16n8k16_bf16: c [16, 8] f32 += a [16, 16] bf16 * b [16, 8] bf16. With g = lane / 4 and
// j = lane % 4:
//
//   a[0] = A[g][2j, 2j+1]   a[1] = A[g+8][2j, 2j+1]   a[2] = A[g][2j+8, 2j+9]   a[3] = A[g+8][...]
//   b[0] = B[2j, 2j+1][g]   b[1] = B[2j+8, 2j+9][g]
//   c[0], c[1] = C[g][2j, 2j+1]                        c[2], c[3] = C[g+8][2j, 2j+1]

#pragma once

#include <cstdint>

namespace dsv4::ptx {

__device__ inline void mma_m16n8k16_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace dsv4::ptx
