// x in the order in which the kernel of kbit_wide.h multiplies: a launch before it, so that a stage
// of x is two bulk copies.
//
// A lane of the consumers decodes block c of a unit, so the 16 columns of product t (of 8) are
// columns 4 t .. 4 t + 3 of the blocks c = 0 .. 3:
//
//   k of the product    2 c, 2 c + 1            8 + 2 c, 9 + 2 c
//   column of block c   4 t, 4 t + 1            4 t + 2, 4 t + 3
//
// A 16-byte chunk of a row of the operand is thus one word of each block. What is written is
//
//   [unit][half][token][8 chunks]       half h: products 4 h .. 4 h + 3; chunk i at i ^ token % 8
//
// which is how wgmma wants rows of 128 bytes (smem_desc.cuh), in any tile that begins at a
// multiple of 8 tokens.

#pragma once

#include <cstdint>

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/gemm/sm90/kbit_wide_plan.h"

namespace dsv4::gemm::kbit_wide {

// A thread has 16 bytes of each block of a unit of a token: a CTA has a unit of kOrderTokens.
inline constexpr int kOrderThreads = 128, kOrderTokens = kOrderThreads / 4;

// A thread loads 16 bytes of each block; what it stores are the columns of this 4 x 4 matrix of
// words, so no instruction moves a word.
//
//   x [tokens, k] 16-bit values, rows 16-byte aligned, `stride` values apart; blockIdx.x: the unit
static __global__ void __launch_bounds__(kOrderThreads)
    order_x_kernel(const uint16_t* x, int64_t stride, int tokens, uint16_t* out) {
  ptx::pdl_start();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp;
  const int token = static_cast<int>(blockIdx.y) * kOrderTokens + thread / kWarp * 8 + lane % 8,
            quarter = lane / 8, unit = static_cast<int>(blockIdx.x);
  if (token >= tokens) return;
  const uint16_t* const from = x + token * stride + unit * kUnit + quarter * 8;
  uint4 w[kUnitBlocks];
#pragma unroll
  for (int c = 0; c < kUnitBlocks; ++c) w[c] = *reinterpret_cast<const uint4*>(from + c * kBlock);
  const int64_t half = int64_t{unit} * 2 + quarter / 2;
  uint16_t* const row = out + (half * tokens + token) * kHalfRow;
  const auto put = [&](int i, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    *reinterpret_cast<uint4*>(row + ((quarter % 2 * 4 + i) ^ token % 8) * 8) =
        make_uint4(a, b, c, d);
  };
  put(0, w[0].x, w[1].x, w[2].x, w[3].x);
  put(1, w[0].y, w[1].y, w[2].y, w[3].y);
  put(2, w[0].z, w[1].z, w[2].z, w[3].z);
  put(3, w[0].w, w[1].w, w[2].w, w[3].w);
}

}  // namespace dsv4::gemm::kbit_wide
