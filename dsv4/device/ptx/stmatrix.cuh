// stmatrix (sm_90) without a transposition; the others are in ldmatrix.cuh.

#pragma once

#include <cstdint>

#include "dsv4/device/ptx/shared_memory.cuh"

namespace dsv4::ptx {

// Lane i gives the address of row i % 8 of matrix i / 8, and holds [g][2j, 2j+1] of each.
__device__ inline void stmatrix_x4(void* row, const uint32_t (&r)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem_address(row)),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
}

}  // namespace dsv4::ptx
