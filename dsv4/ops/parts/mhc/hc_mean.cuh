// The kernel of hc_mean (mhc.h): each thread adds a run of columns of all streams, in their order,
// and divides once.

#pragma once

#include "dsv4/device/pack.cuh"
#include "dsv4/device/ptx/griddep.cuh"

namespace dsv4::mhc_kernel::cuda {

constexpr int kMeanThreads = 128;
constexpr int kMeanRun = 4;  // columns per thread when rows are aligned to them

// grid: [t, d / (threads * run)]
template <int kWide, class In, class Out>
__global__ void hc_mean_kernel(const In* streams, int64_t token_stride, int64_t stream_stride,
                               int m, int d, Out* out, int64_t out_stride) {
  ptx::pdl_start();
  const int64_t token = blockIdx.x;
  const int column =
      (static_cast<int>(blockIdx.y) * kMeanThreads + static_cast<int>(threadIdx.x)) * kWide;
  if (column >= d) return;
  streams += token * token_stride + column;
  float sum[kWide] = {};
  for (int j = 0; j < m; ++j) {
    float x[kWide];
    load<kWide>(streams + j * stream_stride, x);
#pragma unroll
    for (int i = 0; i < kWide; ++i) sum[i] += x[i];
  }
#pragma unroll
  for (int i = 0; i < kWide; ++i) sum[i] = __fdiv_rn(sum[i], static_cast<float>(m));
  store<kWide>(out + token * out_stride + column, sum);
}

}  // namespace dsv4::mhc_kernel::cuda
