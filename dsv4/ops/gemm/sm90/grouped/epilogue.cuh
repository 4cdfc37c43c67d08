// What becomes of the sums of an item, which lie in shared memory by columns: hidden values of the
// experts, or rows of down. A warp takes a column at a time.

#pragma once

#include <cuda_fp8.h>

#include "dsv4/device/ptx/fence.cuh"
#include "dsv4/device/ptx/global_flag.cuh"
#include "dsv4/device/ptx/named_barrier.cuh"
#include "dsv4/device/ptx/packed.cuh"
#include "dsv4/device/ptx/prmt.cuh"
#include "dsv4/formats/quant_group.h"
#include "dsv4/ops/gemm/epilogue/swiglu.cuh"
#include "dsv4/ops/gemm/sm90/grouped/config.cuh"

namespace dsv4::gemm::grouped {

inline constexpr int kEpilogueBarrier = 1;  // a named one, of the epilogue warps

// Biased exponent of the power of two by which h' of a pair is divided: at least its weight.
__device__ inline int weight_exponent(float weight) {
  constexpr uint32_t kLeast = 127 - 14;  // h' of smaller weights needs no more range
  return static_cast<int>(max(__float_as_uint(weight) >> 23 & 0xffu, kLeast)) + 1;
}

// What lane 2 s + i has of h' of a column: rows 4 i .. 4 i + 3 of strip s. to: the first slot
__device__ inline void store_hidden_values(const Item& item, int column, uint32_t codes, int power,
                                           bool is_bf16, std::byte* to) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float factor = __uint_as_float(static_cast<uint32_t>(power) << 23);
  uint32_t words[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const auto two = static_cast<__nv_fp8x2_storage_t>(codes >> (16 * i));
    const float2 value = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3)));
    const float low = value.x * factor, high = value.y * factor;
    words[i] = is_bf16 ? ptx::pack_bf16x2(low, high) : ptx::pack_f16x2(low, high);
  }
  *reinterpret_cast<uint2*>(to +
                            vector_at(is_bf16 ? XForm::kBf16 : XForm::kF16, item.tile.columns,
                                      column, item.first_strip + lane / 2) +
                            lane % 2 * 8) = {words[0], words[1]};
}
// The lanes of strips s and s + 1 exchange pairs of codes (XForm::kE4m3), and each stores a word.
__device__ inline void store_hidden_codes(const Item& item, int column, uint32_t codes,
                                          uint8_t scale, std::byte* to) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, second = lane / 2 % 2;
  const uint32_t other = __shfl_xor_sync(~0u, codes, 2);
  const uint32_t word =
      second == 0 ? ptx::prmt(codes, other, 0x5410) : ptx::prmt(other, codes, 0x7632);
  const int columns = item.tile.columns, group = (item.first_strip + lane / 2) / 2;  // of 16
  *reinterpret_cast<uint32_t*>(to + vector_at(XForm::kE4m3, columns, column, group) + lane % 2 * 8 +
                               second * 4) = word;
  if (lane == 0)
    *reinterpret_cast<float*>(to + factor_at(columns, column, group / 8)) =
        __uint_as_float(uint32_t{scale} << 23);
}

// gate, up -> h = weight * swiglu(gate, up), in bf16 -> Q8 over groups of 128 rows of the weight,
// which are those of an item -> h' in the form that down reads:
//
//   bf16   code * scale, exact
//   e4m3   the code; the scale is the factor of the column in its step of K
//   f16    code * scale * 2^hidden_exponent / pow2ceil(weight), exact unless h' is below 2^-14
//          (subnormal)
//
// Or h itself, where Params::h says so.
//
// Lane 2 s + i has rows 4 i .. 4 i + 3 of strip s: of gate, which is the first vector of the strip,
// and of up.
template <class Weights>
__device__ void store_hidden(const Params& p, const Item& item, const Shared<Weights>& shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp - kFirstEpilogueWarp;
  const int strip = lane / 2, half = lane % 2 * 8;
  const int rows = p.gate_up.rows - (item.first_strip + strip) * 8 - half / 2;  // that exist
  std::byte* const to = p.hidden + item.tile.first_slot * p.down.slot_bytes;
  const int first_row = p.gate_up.rows - rows;
#pragma unroll 1
  for (int column = warp; column < item.tile.pairs; column += kEpilogueWarps) {
    const float weight = p.pair_weight[item.tile.first_slot + column];
    const auto load = [&](int v) {
      return *reinterpret_cast<const uint2*>(shared.staging + staged_at(column, v) + half);
    };
    const uint2 gates = load(2 * strip), ups = load(2 * strip + 1);
    float h[4], largest = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 gate = __bfloat1622float2(ptx::as_bf162(i == 0 ? gates.x : gates.y));
      const float2 up = __bfloat1622float2(ptx::as_bf162(i == 0 ? ups.x : ups.y));
      h[2 * i] = swiglu(gate.x, up.x, weight, p.limit);
      h[2 * i + 1] = swiglu(gate.y, up.y, weight, p.limit);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      h[i] = i < rows ? to_float(from_float<bf16>(h[i])) : 0;
      largest = fmaxf(largest, fabsf(h[i]));  // drops NaN
    }
    if (p.h != nullptr) {
      const int64_t pair = p.first_pair[item.tile_index] + column;
      if (rows > 0)
        store_mirrored(reinterpret_cast<uint2*>(p.h + pair * p.h_stride + first_row),
                       uint2{ptx::pack_bf16x2(h[0], h[1]), ptx::pack_bf16x2(h[2], h[3])},
                       p.h_mirrors);
      continue;
    }
    const uint8_t scale = q8_scale(warp_max(largest));
    const float inverse = inverse_scale(scale);
    uint32_t codes = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t two = __nv_cvt_float2_to_fp8x2(
          make_float2(h[2 * i] * inverse, h[2 * i + 1] * inverse), __NV_SATFINITE, __NV_E4M3);
      codes |= two << (16 * i);
    }
    if (p.hidden_form == XForm::kE4m3) {
      store_hidden_codes(item, column, codes, scale, to);
    } else {
      const bool is_bf16 = p.hidden_form == XForm::kBf16;
      const int power =
          is_bf16 ? scale : max(scale + 127 + p.hidden_exponent - weight_exponent(weight), 0);
      store_hidden_values(item, column, codes, power, is_bf16, to);
    }
  }
}

template <class Weights>
__device__ void store_rows(const Params& p, const Item& item, const Shared<Weights>& shared) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp - kFirstEpilogueWarp;
  const int row = item.first_strip * kUnitRows + 8 * lane;
  if (row >= p.down.rows) return;
#pragma unroll 4
  for (int column = warp; column < item.tile.pairs; column += kEpilogueWarps) {
    const int slot = item.tile.first_slot + column;
    const int64_t to = p.y_row == nullptr ? slot : p.y_row[slot];
    *reinterpret_cast<uint4*>(p.y + to * p.y_stride + row) =
        *reinterpret_cast<const uint4*>(shared.staging + staged_at(column, lane));
  }
}

// `item` is number `index` of the CTA.
template <class Weights>
__device__ void finish(const Params& p, const Item& item, int index, Shared<Weights>& shared) {
  shared.staging_full.wait(index % 2);
  if (item.down) {
    store_rows(p, item, shared);
  } else {
    store_hidden(p, item, shared);
  }
  __syncwarp();
  if (threadIdx.x % kWarp == 0) shared.staging_empty.arrive();
  if (item.down) return;
  ptx::fence_proxy_async_global();  // bulk copies of other CTAs read h'
  ptx::barrier_sync(kEpilogueBarrier, kEpilogueWarps * kWarp);
  if (threadIdx.x == kFirstEpilogueWarp * kWarp) ptx::add_release(p.done + item.tile_index, 1);
}

}  // namespace dsv4::gemm::grouped
