// Q8 of this rank's columns of bf16 activations (formats/quant_group.h), into the swizzled layout
// that wgmma reads; scales, as f32, beside them. All consumers.

#pragma once

#include "dsv4/device/pack.cuh"
#include "dsv4/device/quantize.cuh"
#include "dsv4/ops/few_gemm/config.cuh"

namespace dsv4::few_gemm {

// Where the 8 codes from column 8 * `run` of a slab on are stored for a token (smem_desc.cuh).
__device__ inline int swizzled_run(int token, int run) {
  return token * kSlabBytes + (((run / 2) ^ (token % 8)) * 2 + run % 2) * 8;
}

// x: [tokens, ...] of the first token and of column 0 of the group.
template <class C>
__device__ void quantize_x(const Memory<C>& memory, const Share& share, const bf16* x,
                           int64_t stride, int tokens, int thread) {
  constexpr int kRun = 8, kLanes = kScaleColumns / kRun;  // 16 lanes a group
  const int lane = thread % kLanes;
  const int groups = tokens * share.slabs;
  // All lanes of a warp take part in its shuffles; a group past the end repeats the last.
  for (int first = 0; first < groups; first += kConsumers / kLanes) {
    const int i = min(first + thread / kLanes, groups - 1);
    const int slab = i / tokens, token = i - slab * tokens;
    float v[kRun], largest = 0;
    load<kRun>(x + token * stride + (share.first_slab + slab) * kScaleColumns + lane * kRun, v);
#pragma unroll
    for (const float value : v) largest = fmaxf(largest, fabsf(value));
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    const uint8_t scale = q8_scale(largest);
    const float inverse = inverse_scale(scale);
    Pack<__nv_fp8x2_storage_t, kRun / 2> codes;
#pragma unroll
    for (int j = 0; j < kRun / 2; ++j)
      codes.value[j] = __nv_cvt_float2_to_fp8x2({v[2 * j] * inverse, v[2 * j + 1] * inverse},
                                                __NV_SATFINITE, __NV_E4M3);
    if (first + thread / kLanes < groups) {
      *reinterpret_cast<decltype(codes)*>(memory.x(slab) + swizzled_run(token, lane)) = codes;
      if (lane == 0) memory.x_scale()[slab * C::kTokens + token] = ue8m0_to_f32(scale);
    }
  }
}

// Stored scales as f32: [slabs][kTokens]. first: of the first token and of slab 0 of the group.
template <class C>
__device__ void load_x_scale(const Memory<C>& memory, const Share& share, const uint8_t* first,
                             int64_t stride, int tokens, int thread) {
  for (int i = thread; i < tokens * share.slabs; i += kConsumers) {
    const int token = i / share.slabs, slab = i - token * share.slabs;
    memory.x_scale()[slab * C::kTokens + token] =
        ue8m0_to_f32(first[token * stride + share.first_slab + slab]);
  }
}

}  // namespace dsv4::few_gemm
