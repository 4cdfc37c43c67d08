// The kernel of the implementation cuda of quantize_fp4.h: a thread quantizes a group, by the
// host's own functions (quantize_fp4_group.h). A CTA brings its groups to shared memory first, so
// that neighboring threads load neighboring values.

#pragma once

#include <cstdint>

#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/kbit/quantize_fp4_group.h"

namespace dsv4::quantize_fp4_kernel {

inline constexpr int kThreads = 128;  // groups of a CTA
inline constexpr int kMaxGroup = 32;

// A kernel argument.
struct Fp4Quantizer {
  const float* x;
  int64_t x_stride;  // elements from one row to the next
  int64_t rows, groups;
  int group;                // columns
  const float* importance;  // [k] or null
  bool mx, searched;
  float scale2;
  uint8_t* pairs;
  int64_t pair_stride;
  uint8_t* scales;
  int64_t scale_stride;
  int32_t* first_bad;  // or null
};

// grid: groups of all rows. The padding of `values` keeps a warp's groups in different banks.
__global__ inline void __launch_bounds__(kThreads)
    quantize_fp4_kernel(const __grid_constant__ Fp4Quantizer q) {
  __shared__ float values[kThreads * (kMaxGroup + 1)];
  ptx::pdl_start();
  const int64_t first = int64_t{blockIdx.x} * kThreads, end = q.rows * q.groups;
  for (int i = static_cast<int>(threadIdx.x); i < kThreads * q.group; i += kThreads) {
    const int64_t at = first + i / q.group;
    if (at >= end) break;
    values[i / q.group * (q.group + 1) + i % q.group] =
        q.x[at / q.groups * q.x_stride + at % q.groups * q.group + i % q.group];
  }
  __syncthreads();
  const int64_t at = first + threadIdx.x;
  if (at >= end) return;
  const int64_t row = at / q.groups, column = at % q.groups;
  const float* const x = values + threadIdx.x * (q.group + 1);
  if (!all_finite(x, q.group)) {
    if (q.first_bad != nullptr) atomicMin(q.first_bad, static_cast<int32_t>(at));
    return;
  }
  const Fp4Group group{
      .x = x,
      .importance = q.importance == nullptr ? nullptr : q.importance + column * q.group,
      .count = q.group,
      .mx = q.mx,
      .scale2 = q.scale2};
  const int byte = q.searched ? group.searched_byte() : group.plain_byte();
  q.scales[row * q.scale_stride + column] = static_cast<uint8_t>(byte);
  group.write(byte, q.pairs + row * q.pair_stride + column * (q.group / 2));
}

}  // namespace dsv4::quantize_fp4_kernel
