// The kernel of the implementation cuda of row_errors.h: the bits of the CPU's.
//
// A sum has one order, so a lane adds up a row. A warp loads tiles of 32 rows by 32 columns, a row
// at a time, and its lanes read them by columns; the padding keeps both free of bank conflicts.

#pragma once

#include <cstdint>

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/griddep.cuh"

namespace dsv4::row_errors_kernel {

inline constexpr int kWarps = 2;  // of a CTA

// A kernel argument.
struct RowErrors {
  const float *x, *y;
  int64_t x_stride, y_stride;  // elements from one row to the next
  const float* importance;     // [k] or null
  double* sums;                // [rows, 5]
  int64_t sums_stride;
  int64_t rows, k;
};

struct ErrorSums {
  double signal = 0, noise = 0, dot = 0, weighted_signal = 0, weighted_dot = 0;

  __device__ void add(float x, float y) {
    const auto value = static_cast<double>(x), decoded = static_cast<double>(y);
    const double off = __dsub_rn(decoded, value);
    signal = __dadd_rn(signal, __dmul_rn(value, value));
    noise = __dadd_rn(noise, __dmul_rn(off, off));
    dot = __dadd_rn(dot, __dmul_rn(value, decoded));
  }
  __device__ void add_weighted(float x, float y, float h) {
    const auto value = static_cast<double>(x), weight = static_cast<double>(h);
    const double product = __dmul_rn(value, static_cast<double>(y));
    weighted_signal = __dadd_rn(weighted_signal, __dmul_rn(__dmul_rn(weight, value), value));
    weighted_dot = __dadd_rn(weighted_dot, __dmul_rn(weight, product));
  }
  __device__ void store(double* to, bool weighted) const {
    to[0] = signal, to[1] = noise, to[2] = dot;
    to[3] = weighted ? weighted_signal : signal;
    to[4] = weighted ? weighted_dot : dot;
  }
};

using Tile = float[kWarp][kWarp + 1];

// Rows and columns beyond the matrix are zeros.
__device__ inline void load_tile(const RowErrors& e, const float* from, int64_t stride,
                                 int64_t first_row, int64_t column, Tile& tile) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll 8
  for (int r = 0; r < kWarp; ++r) {
    const bool exists = first_row + r < e.rows && column + lane < e.k;
    tile[r][lane] = exists ? from[(first_row + r) * stride + column + lane] : 0.f;
  }
}

// grid: [ceil(rows / 64)]
__global__ inline void __launch_bounds__(kWarps* kWarp)
    row_errors_kernel(const __grid_constant__ RowErrors e) {
  __shared__ Tile x[kWarps], y[kWarps];
  ptx::pdl_start();
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t first_row = (int64_t{blockIdx.x} * kWarps + warp) * kWarp;
  ErrorSums sums;
  for (int64_t column = 0; column < e.k; column += kWarp) {
    load_tile(e, e.x, e.x_stride, first_row, column, x[warp]);
    load_tile(e, e.y, e.y_stride, first_row, column, y[warp]);
    __syncwarp();
    const int count = static_cast<int>(e.k - column < kWarp ? e.k - column : kWarp);
    for (int i = 0; i < count; ++i) {
      sums.add(x[warp][lane][i], y[warp][lane][i]);
      if (e.importance != nullptr)
        sums.add_weighted(x[warp][lane][i], y[warp][lane][i], e.importance[column + i]);
    }
    __syncwarp();
  }
  const int64_t row = first_row + lane;
  if (row < e.rows) sums.store(e.sums + row * e.sums_stride, e.importance != nullptr);
}

}  // namespace dsv4::row_errors_kernel
