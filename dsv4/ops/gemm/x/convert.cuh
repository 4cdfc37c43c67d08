// bf16 activations as the kernel multiplies them, written by the consumers into the swizzled layout
// that wgmma reads (smem_desc.cuh): groups of 128 columns, one slab, with a scale.
//
//   codes  Q8 (formats/quant_group.h), for FP8 weights and bit planes
//   f16    for FP8 weights that are multiplied with bf16: scaled by the power of two that brings
//          the largest value of the group to 2^14 .. 2^15. Only values below 2^-28 of the largest
//          are rounded, by at most 2^-39 of it

#pragma once

#include "dsv4/device/pack.cuh"
#include "dsv4/device/ptx/fence.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/named_barrier.cuh"
#include "dsv4/device/ptx/packed.cuh"
#include "dsv4/formats/quant_group.h"
#include "dsv4/ops/gemm/x/block_rows.cuh"
#include "dsv4/ops/gemm/x/columns8.cuh"

namespace dsv4::gemm {

// Byte `at` of chunk `chunk` (16 bytes) of a token's row.
__device__ inline int swizzled(int token, int chunk, int at) {
  return token * kSlabBytes + ((chunk ^ (token % 8)) << 4) + at;
}

struct ToCodes {
  static __device__ float scale(float largest) { return ue8m0_to_f32(q8_scale(largest)); }
  static __device__ float inverse(float largest) { return inverse_scale(q8_scale(largest)); }

  using Codes = Pack<__nv_fp8x2_storage_t, kRun / 2>;
  // v: scaled values.
  static __device__ Codes codes(const float (&v)[kRun]) {
    Codes codes;
#pragma unroll
    for (int i = 0; i < kRun / 2; ++i)
      codes.value[i] =
          __nv_cvt_float2_to_fp8x2({v[2 * i], v[2 * i + 1]}, __NV_SATFINITE, __NV_E4M3);
    return codes;
  }
  // v: of columns 8 * run ..
  template <class C>
  static __device__ void store(unsigned char* slab, int token, int run, const float (&v)[kRun]) {
    *reinterpret_cast<Codes*>(slab + swizzled(token, run / 2, run % 2 * 8)) = codes(v);
  }
};

// Q8 for bit planes.
struct ToBlocks : ToCodes {
  template <class C>
  static __device__ void store(unsigned char* group, int token, int run, const float (&v)[kRun]) {
    const Codes all = codes(v);
    store_blocks<C::kBits>(group, token, run, reinterpret_cast<const uint2&>(all));
  }
};

struct ToF16 {
  // Biased exponent of the largest value, at least 27: its scale and inverse are then normal.
  static __device__ uint32_t exponent(float largest) {
    return max(__float_as_uint(largest) >> 23, 27u);
  }
  static __device__ float scale(float largest) {
    return __uint_as_float((exponent(largest) - 14) << 23);
  }
  static __device__ float inverse(float largest) {
    return __uint_as_float((254 + 14 - exponent(largest)) << 23);
  }

  // The scale as E8M0.
  static __device__ uint8_t scale_code(float largest) {
    return static_cast<uint8_t>(exponent(largest) - 14);
  }

  // In the order that multiply_converted() reads: of 16 columns, the positions 2j, 2j + 1, 2j + 8,
  // 2j + 9 hold the columns 4j .. 4j + 3. Chunk 0 or 1 of the 16: four columns of a run.
  static __device__ uint2 words(const float (&v)[kRun], int chunk) {
    return {ptx::pack_f16x2(v[2 * chunk], v[2 * chunk + 1]),
            ptx::pack_f16x2(v[2 * chunk + 4], v[2 * chunk + 5])};
  }
  template <class C>
  static __device__ void store(unsigned char* slab, int token, int run, const float (&v)[kRun]) {
    const int step = run / 2, half = run % 2 * 8;  // 16 columns, and the half of them
    unsigned char* rows = slab + step / 4 * C::kTokens * kSlabBytes;
#pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk)
      *reinterpret_cast<uint2*>(rows + swizzled(token, step % 4 * 2 + chunk, half)) =
          words(v, chunk);
  }
};

// f16 for bit planes.
struct ToF16Blocks : ToF16 {
  template <class C>
  static __device__ void store(unsigned char* group, int token, int run, const float (&v)[kRun]) {
    store_f16_blocks<C>(group, token, run, v);
  }
};

// The largest magnitude of a group, of whose values a lane has v.
__device__ inline float largest_of_group(const float (&v)[kRun]) {
  float largest = 0;
#pragma unroll
  for (const float value : v) largest = fmaxf(largest, fabsf(value));
#pragma unroll
  for (int step = kRuns / 2; step > 0; step /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
  return largest;
}

// Where a group of 128 columns is: groups in order, all tokens of a slab after each other.
__device__ inline int2 slab_and_token(int group, int tokens) {
  if (tokens == 1) return {group, 0};  // a division is 20 instructions
  const int slab = group / tokens;
  return {slab, group - slab * tokens};
}

// x: of the first token and of column 0 of the group of columns. All consumers.
//
// A pass has up to kBatch groups for every 16 lanes, whose loads are in flight together: as words,
// since halves are taken apart where they are loaded, which waits for each load. Steps of a pass
// past the end are skipped by all threads: instructions that do not run are not fetched.
template <class C, class To>
__device__ void convert_x(const Memory<C>& memory, const Share& share, const bf16* x,
                          int64_t stride, int tokens, int thread) {
  constexpr int kAtOnce = kConsumers / kRuns, kBatch = 4;
  const int run = thread % kRuns, own = thread / kRuns, groups = tokens * share.slabs * C::kGroups;
  x += share.first_slab * C::kGroups * kScaleColumns + run * kRun;
#pragma unroll 1
  for (int first = 0; first < groups; first += kBatch * kAtOnce) {
    Run packed[kBatch];
    int2 place[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (first + b * kAtOnce >= groups) break;
      // All lanes of a warp take part in its shuffles; a group past the end repeats the last.
      place[b] = slab_and_token(min(first + b * kAtOnce + own, groups - 1), tokens);
      packed[b] = Run::load(x + place[b].y * stride + place[b].x * kScaleColumns);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (first + b * kAtOnce >= groups) break;
      float v[kRun];
      packed[b].widen(v);
      const float largest = largest_of_group(v), inverse = To::inverse(largest);
#pragma unroll
      for (float& value : v) value *= inverse;
      if (first + b * kAtOnce + own >= groups) continue;
      To::template store<C>(memory.x(place[b].x), place[b].y, run, v);
      if (run == 0) memory.x_scale()[place[b].x * C::kTokens + place[b].y] = To::scale(largest);
    }
  }
}

// Stored scales as f32: [groups][kTokens]. first: of the first token and of column 0.
template <class C>
__device__ void load_x_scale(const Memory<C>& memory, const Share& share, const uint8_t* first,
                             int64_t stride, int tokens, int thread) {
  for (int i = thread; i < tokens * share.slabs * C::kGroups; i += kConsumers) {
    const int token = i / (share.slabs * C::kGroups);
    const int group = i - token * share.slabs * C::kGroups;
    memory.x_scale()[group * C::kTokens + token] =
        ue8m0_to_f32(first[token * stride + share.first_slab * C::kGroups + group]);
  }
}

// Activations as they are stored, or Q8 of bf16.
template <class C, class P>
struct LoadX {
  const P& params;

  // Whether the producer copies them.
  __device__ bool copies() const {
    return C::kStreamsX || (C::kBits == 0 && params.x_values == nullptr);
  }

  // What the consumers do: the wait for the previous kernel, then all of x in shared memory that
  // the producer does not copy.
  __device__ void operator()(const Memory<C>& memory, const Share& share, int first_token,
                             int tokens, int thread) const {
    if constexpr (C::kBits > 0) {
      clear_blocks<C, kConsumers>(memory.x(0), share.slabs * C::kGroups, thread);
      ptx::barrier_sync(kConsumerBarrier, kConsumers);
    }
    ptx::griddepcontrol_wait();
    if constexpr (C::kScaledX) {
      const int64_t column = int64_t{share.group} * params.k;
      if (C::kBits > 0 ? params.x_scale != nullptr : copies()) {
        load_x_scale(memory, share,
                     params.x_scale + first_token * params.x_scale_stride + column / kScaleColumns,
                     params.x_scale_stride, tokens, thread);
        if constexpr (C::kBits > 0 && !converts_to_f16(C::kFormat)) {
          const auto* const x = static_cast<const uint8_t*>(params.x_values) +
                                first_token * params.x_stride + column +
                                share.first_slab * slab_columns(C::kFormat);
          load_blocks<C, kConsumers>(memory.x(0), share.slabs * C::kGroups, x, params.x_stride,
                                     tokens, thread);
          ptx::fence_proxy_async();
        }
      } else if constexpr (!C::kStreamsX) {
        using To = std::conditional_t<converts_to_f16(C::kFormat),
                                      std::conditional_t<C::kBits == 0, ToF16, ToF16Blocks>,
                                      std::conditional_t<C::kBits == 0, ToCodes, ToBlocks>>;
        const auto* const x = static_cast<const bf16*>(params.x_values);
        convert_x<C, To>(memory, share, x + first_token * params.x_stride + column, params.x_stride,
                         tokens, thread);
        ptx::fence_proxy_async();
      }
      ptx::barrier_sync(kConsumerBarrier, kConsumers);
    }
  }
};

}  // namespace dsv4::gemm
