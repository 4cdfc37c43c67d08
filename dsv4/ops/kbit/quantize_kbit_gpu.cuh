// The kernel of the implementation cuda of quantize_kbit.h: the bits of the CPU's
// (quantize_kbit_kernel.h), scales searched or not.
//
// A warp quantizes a block, a lane an element. In the search a lane has a scale byte instead, and
// the warp compares 32 at a time from the largest candidate down, where the CPU compares 16: the
// bytes between have larger errors, since the bound on clipping that ends the search is a lower
// bound of each. Errors are added in the order of the elements, without fused multiplications.

#pragma once

#include <cstdint>

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/formats/e4m4.h"
#include "dsv4/formats/kbit.h"
#include "dsv4/ops/kbit/quantize_kbit_kernel.h"
#include "dsv4/tensor/dtype.h"

namespace dsv4::kbit_kernel {

inline constexpr int kBlocksAtOnce = 8;  // warps of a CTA

// A kernel argument.
struct GpuQuantizer {
  const std::byte* x;
  DType x_dtype;
  int64_t x_stride;  // elements from one row to the next
  int64_t rows, k, blocks;
  const float* importance;  // [k] or null
  float inverse_scale;      // 1 / tensor_scale
  bool reference;
  int bits;
  float codebook[kMaxLevels];
  // As in Quantizer.
  float level[kMaxLevels];
  float reach, limit, largest, unit;
  bool magnitudes;
  uint32_t* planes;
  int64_t plane_stride;
  uint8_t* scales;
  int64_t scale_stride;
  int32_t* first_bad;  // or null: the first block that cannot be written, row * blocks + block
};

// What lane i has of a block: its element, the element's weight, and how many are no padding.
struct LaneBlock {
  float z, weight;
  int count;
  bool weighted;
};

__device__ inline float load_value(const GpuQuantizer& q, int64_t i) {
  if (q.x_dtype == DType::kF32) return reinterpret_cast<const float*>(q.x)[i];
  if (q.x_dtype == DType::kBF16) return to_float(reinterpret_cast<const bf16*>(q.x)[i]);
  return to_float(reinterpret_cast<const f16*>(q.x)[i]);
}

__device__ inline LaneBlock load_block(const GpuQuantizer& q, int64_t row, int64_t block) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t left = q.k - block * kKbitBlock, column = block * kKbitBlock + lane;
  LaneBlock own{.count = static_cast<int>(left < kKbitBlock ? left : kKbitBlock),
                .weighted = q.importance != nullptr};
  const bool exists = lane < own.count;
  own.z = exists ? __fmul_rn(load_value(q, row * q.x_stride + column), q.inverse_scale) : 0.f;
  own.weight = own.weighted && exists ? q.importance[column] : 0.f;
  if (!own.weighted) return own;
  // Refused like a value that is not finite.
  if (!(own.weight >= 0.f && own.weight < INFINITY)) own.z = NAN;
  // Relative to the largest; all zero: all equal.
  const float most = warp_max(own.weight);
  if (exists) own.weight = most > 0 ? __fdiv_rn(own.weight, most) : 1.f;
  return own;
}

// The squared error of the block with this scale byte. z: of the search
template <int kLevels>
__device__ inline float error_of(const GpuQuantizer& q, const LaneBlock& own, float z, int byte) {
  const float scale = e4m4_to_f32(static_cast<uint8_t>(byte));
  const float inverse = __fmul_rn(byte == 0 ? 0.f : __fdiv_rn(1.f, scale), q.unit);
  float sum = 0;
  for (int i = 0; i < own.count; ++i) {
    const float value = __shfl_sync(~0u, z, i), weight = __shfl_sync(~0u, own.weight, i);
    const float t = __fmul_rn(value, inverse);
    float square = 0;
#pragma unroll
    for (int l = 0; l < kLevels; ++l) {
      const float distance = __fsub_rn(t, q.level[l]);
      const float of_level = __fmul_rn(distance, distance);
      square = l == 0 ? of_level : fminf(square, of_level);
    }
    if (byte == 0) square = __fmul_rn(value, value);  // all values are zero
    if (own.weighted) square = __fmul_rn(square, weight);
    sum = __fadd_rn(sum, square);
  }
  if (byte == 0) return sum;
  const float by_unit = __fmul_rn(scale, __fdiv_rn(1.f, q.unit));
  return __fmul_rn(sum, __fmul_rn(by_unit, by_unit));
}

// A lower bound of the error of every scale whose largest value is at most `reach`.
__device__ inline float clipping_error(const LaneBlock& own, float reach) {
  const float over = fmaxf(__fsub_rn(fabsf(own.z), reach), 0.f);
  return warp_sum(own.weighted ? over * over * own.weight : over * over);
}

template <int kLevels>
__device__ inline int searched_byte(const GpuQuantizer& q, const LaneBlock& own, float absmax) {
  constexpr int kUp = 15, kUpMany = 23;  // reach_up() of the CPU's kernel
  constexpr int kLeastTop = 15;          // its last batch ends at byte 0
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int full = f32_to_e4m4(fminf(__fdiv_rn(absmax, q.reach), kE4M4Max));
  const int last = min(full + (q.bits > 3 ? kUpMany : kUp), 255);
  const float z = q.magnitudes ? fabsf(own.z) : own.z;
  float best = INFINITY;
  int best_byte = 0;
  const int top = max(last, kLeastTop);
  for (int high = top; high >= 0; high -= kWarp) {
    if (high < top && high < full) {
      const float reach = __fmul_rn(e4m4_to_f32(static_cast<uint8_t>(high)), q.largest);
      if (!(0.9999f * clipping_error(own, reach) <= best)) break;
    }
    int byte = high - lane;
    float error = error_of<kLevels>(q, own, z, max(byte, 0));
    if (byte < 0) error = INFINITY;
    for (int step = kWarp / 2; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(~0u, error, step);
      const int other_byte = __shfl_xor_sync(~0u, byte, step);
      if (other < error || (other == error && other_byte < byte)) error = other, byte = other_byte;
    }
    if (error < best || (error == best && byte >= 0 && byte < best_byte))
      best = error, best_byte = byte;
  }
  return best_byte;
}

// The nearest codebook value of z / divisor; a later value must be strictly nearer.
__device__ inline uint32_t nearest_code(const GpuQuantizer& q, float z, float divisor) {
  const float t = __fdiv_rn(z, divisor);
  float nearest = fabsf(__fsub_rn(t, q.codebook[0]));
  uint32_t code = 0;
  for (int c = 1; c < 1 << q.bits; ++c) {
    const float distance = fabsf(__fsub_rn(t, q.codebook[c]));
    if (distance < nearest) nearest = distance, code = static_cast<uint32_t>(c);
  }
  return code;
}

// kLevels: of the search
template <int kLevels>
__global__ void __launch_bounds__(kBlocksAtOnce* kWarp)
    quantize_kernel(const __grid_constant__ GpuQuantizer q) {
  ptx::pdl_start();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t at = int64_t{blockIdx.x} * kBlocksAtOnce + threadIdx.x / kWarp;
  if (at >= q.rows * q.blocks) return;
  const int64_t row = at / q.blocks, block = at % q.blocks;
  const LaneBlock own = load_block(q, row, block);
  // As bits, which order like the magnitudes, with NaN above all.
  const uint32_t most = __reduce_max_sync(~0u, __float_as_uint(own.z) & 0x7fffffffu);
  if (most > __float_as_uint(q.limit)) {
    if (lane == 0 && q.first_bad != nullptr) atomicMin(q.first_bad, static_cast<int32_t>(at));
    return;
  }
  const float absmax = __uint_as_float(most);
  int byte = 0;
  float divisor = absmax;
  if (q.reference) {
    byte = f32_to_e4m4(absmax);
  } else if (absmax > 0) {
    byte = searched_byte<kLevels>(q, own, absmax);
    divisor = e4m4_to_f32(static_cast<uint8_t>(byte));
  }
  const uint32_t code = nearest_code(q, own.z, fmaxf(divisor, 1e-8f));
  uint32_t* const planes = q.planes + row * q.plane_stride + block * q.bits;
  for (int j = 0; j < q.bits; ++j) {
    const uint32_t plane = __ballot_sync(~0u, ((code >> j) & 1u) != 0);
    if (lane == 0) planes[j] = plane;
  }
  if (lane == 0) q.scales[row * q.scale_stride + block] = static_cast<uint8_t>(byte);
}

// largest magnitude of x as bits, into a word that is zero before.
__global__ inline void largest_kernel(const __grid_constant__ GpuQuantizer q, int* most) {
  ptx::pdl_start();
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  uint32_t own = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < q.rows * q.k; i += step) {
    const float v = load_value(q, i / q.k * q.x_stride + i % q.k);
    own = max(own, __float_as_uint(v) & 0x7fffffffu);
  }
  own = __reduce_max_sync(~0u, own);
  if (threadIdx.x % kWarp == 0) atomicMax(most, static_cast<int>(own));
}

}  // namespace dsv4::kbit_kernel
