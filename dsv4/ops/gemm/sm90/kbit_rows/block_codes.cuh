// What a lane has of the weight in a unit: the words and the scales of its block in two rows, and
// the sums of its products.

#pragma once

#include "dsv4/ops/gemm/sm90/kbit_rows/config.cuh"

namespace dsv4::gemm::kbit_rows {

// The K words of a block.
template <int K>
__device__ inline void load_planes(const unsigned char* from, uint32_t (&plane)[K]) {
  if constexpr (K == 2) {
    const uint2 words = *reinterpret_cast<const uint2*>(from);
    plane[0] = words.x, plane[1] = words.y;
  } else if constexpr (K == 4) {
    const uint4 words = *reinterpret_cast<const uint4*>(from);
    plane[0] = words.x, plane[1] = words.y, plane[2] = words.z, plane[3] = words.w;
  } else {
#pragma unroll
    for (int i = 0; i < K; ++i) plane[i] = reinterpret_cast<const uint32_t*>(from)[i];
  }
}

// Scale bytes of a lane's block in its two rows, requested two units ahead. Rows that do not exist
// repeat the last one, and so do blocks: products with the latter are those of zeros in x.
class Scales {
 public:
  // row: the lane's rows in a round; unit: its first, of which it has every step-th
  __device__ void start(const Params& p, const int (&row)[2], int unit, int step) {
    scale_ = p.scale; skip_ = (p.tune & 1) != 0; byte_[1][0] = byte_[1][1] = 0x77;
    const int block = 4 * unit + static_cast<int>(threadIdx.x % 4), last = p.k / 32 - 1;
    left_ = last - block;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      at_[r] = static_cast<uint32_t>(min(row[r], p.n - 1)) * static_cast<uint32_t>(p.scale_stride) +
               static_cast<uint32_t>(min(block, last));
      byte_[0][r] = 0;
    }
    request(0, step), byte_[1][0] = byte_[0][0], byte_[1][1] = byte_[0][1];
    request(1, step);
  }
  // Gives those of the next unit.
  __device__ void take(uint32_t (&scale)[2], int step) {
#pragma unroll
    for (int r = 0; r < 2; ++r) scale[r] = byte_[0][r], byte_[0][r] = byte_[1][r];
    request(1, step);
  }

 private:
  __device__ void request(int to, int step) {
    if (left_ >= 0 && !skip_) {
#pragma unroll
      for (int r = 0; r < 2; ++r) byte_[to][r] = __ldg(scale_ + at_[r]);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) at_[r] += static_cast<uint32_t>(4 * step);
    left_ -= 4 * step;
  }

  const uint8_t* scale_;
  uint32_t at_[2], byte_[2][2];
  bool skip_;
  int left_;  // blocks after the next one
};

// Each output has two sums, one for each half of the units, which are added at the end.
template <int N>
using Sums = float[2][N / 2];

}  // namespace dsv4::gemm::kbit_rows
