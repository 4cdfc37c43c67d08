// The kernel of find_exponents() (pack_image.h). A warp reads a unit of 16 rows x 256 columns; a
// lane has codes of rows g and g + 8.

#pragma once

#include "dsv4/device/math.cuh"
#include "dsv4/ops/kbit/pack_image.h"

namespace dsv4::kbit_packing {

inline constexpr int kRangeWarps = 8;

// Includes the exponents of the blocks of this lane's codes in the ranges of rows g and g + 8.
__device__ inline void read_unit(const std::byte* unit, ExponentRange (&ranges)[2]) {
  constexpr int kBlocks = 2;  // of a step
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const KbitImage image{.bits = 4, .scale = ImageScale::kUe8m0};
#pragma unroll
  for (int step = 0; step < KbitImage::kSteps; ++step) {
    const uint4 four =
        *reinterpret_cast<const uint4*>(unit + KbitImage::word_offset(lane, 4 * step));
    const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const uint32_t nibbles = kbit_nibbles(words, 4, 2 * b) | kbit_nibbles(words, 4, 2 * b + 1);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if ((nibbles >> (16 * h) & 0xffffu) == 0) continue;
        const auto exponent =
            static_cast<int32_t>(unit[image.scale_offset(lane / 4 + 8 * h, kBlocks * step + b)]);
        ranges[h].largest = max(ranges[h].largest, exponent);
        ranges[h].below_256 = max(ranges[h].below_256, 256 - exponent);
      }
    }
  }
}

// grid: units of an image over kRangeWarps, experts
__global__ void exponents_kernel(KbitImage image, bool gate_and_up, const std::byte* images,
                                 ExponentRange* ranges) {
  const int64_t unit = int64_t{blockIdx.x} * kRangeWarps + threadIdx.x / kWarp;
  const int64_t expert = blockIdx.y;
  if (unit >= image.num_strips() * image.units_along_k()) return;
  ExponentRange own[2];
  read_unit(images + expert * image.bytes() + unit * image.unit_bytes(), own);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      own[h].largest = max(own[h].largest, __shfl_xor_sync(~0u, own[h].largest, step));
      own[h].below_256 = max(own[h].below_256, __shfl_xor_sync(~0u, own[h].below_256, step));
    }
    if (threadIdx.x % kWarp != 0 || own[h].below_256 == 0) continue;
    ExponentRange* const to = gate_and_up ? ranges + 2 * expert + h : ranges + expert;
    atomicMax(&to->largest, own[h].largest);
    atomicMax(&to->below_256, own[h].below_256);
  }
}

}  // namespace dsv4::kbit_packing
