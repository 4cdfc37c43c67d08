// What becomes of the sums of an item: hidden values of the experts, or rows of
// down.
//
// Consumers exchange through `staging`: a fragment has neighboring columns of
// one row, and memory wants neighboring rows of one column, which a transposing
// stmatrix turns around.

#pragma once

#include <cuda_fp8.h>

#include "dsv4/device/ptx/fence.cuh"
#include "dsv4/device/ptx/global_flag.cuh"
#include "dsv4/device/ptx/ldmatrix.cuh"
#include "dsv4/device/ptx/packed.cuh"
#include "dsv4/formats/quant_group.h"
#include "dsv4/ops/gemm/epilogue/swiglu.cuh"
#include "dsv4/ops/gemm/sm90/grouped/consumer.cuh"

namespace dsv4::gemm::grouped {

__device__ inline void sync_consumers() {
  ptx::barrier_sync(kConsumersBarrier, kConsumers);
}

// The factors of the item's columns to shared memory, when all consumers have
// finished the item before. Columns without a pair get zeros.
template <bool kHidden, class S>
__device__ void load_columns(const Params& p, const Item& item, S& shared) {
  const int i = static_cast<int>(threadIdx.x);
  sync_consumers();
  if (i < item.tile.columns) {
    Column column{0, 0};
    if (i < item.tile.pairs) {
      column.factor = (kHidden ? p.gate_up : p.down).column[item.tile.first_slot + i];
      if (kHidden) column.weight = p.pair_weight[item.tile.first_slot + i];
    }
    shared.columns[i] = column;
  }
  sync_consumers();
}

__device__ inline float rounded(float x) {
  return to_float(from_float<bf16>(x));
}

// Biased exponent of the power of two by which h' of a pair is divided: at
// least its weight.
__device__ inline int weight_exponent(float weight) {
  constexpr uint32_t kLeast = 127 - 14;  // h' of smaller weights needs no more range
  return static_cast<int>(max(__float_as_uint(weight) >> 23 & 0xffu, kLeast)) + 1;
}

// gate, up -> h = weight * swiglu(gate, up), in bf16 -> Q8 over groups of 128
// rows of the weight, which are those of an item -> h' = code * scale *
// 2^hidden_exponent / pow2ceil(weight), in f16. Codes times scales are exact
// unless h' is below 2^-14 (subnormal).
struct StoreHidden {
  template <int kN, class S>
  static __device__ void finish(const Params& p, const Item& item, const Sums<kN>& sums,
                                S& shared) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    load_columns<true>(p, item, shared);
    uint32_t h[kBlocks][kN / 8];  // of two columns, bf16
    activate<kN>(p, item, sums, shared, h);
    find_largest<kN>(h, shared.largest[threadIdx.x / kWarp]);
    sync_consumers();
    if (static_cast<int>(threadIdx.x) < kN / 2) choose_scale(p, shared);
    sync_consumers();
#pragma unroll
    for (int n = 0; n < kN / 8; n += 2) {
      uint32_t four[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int two = (n + i % 2) * 4 + lane % 4;
        four[i] = quantize(h[i / 2][n + i % 2], shared.inverse[two], shared.power[two]);
      }
      // Matrices: columns 8 n .. 8 n + 7 and the next eight of block 0, then of
      // block 1.
      const int column = 8 * n + lane % 16, strip = strip_of(lane / 16);
      ptx::stmatrix_x4_trans(ptx::smem_address(shared.staging + vector_at(kN, column, strip)),
                             four);
    }
    sync_consumers();
    // The 128 values of K of all columns are two blocks, one run of bytes here
    // and there.
    auto* const to = reinterpret_cast<uint4*>(p.hidden + item.slot_bytes(p.down.chunks) +
                                              int64_t{item.first_strip / 8} * kN * kBlockBytes);
    const auto* const from = reinterpret_cast<const uint4*>(shared.staging);
    for (int i = static_cast<int>(threadIdx.x); i < 2 * kN * kBlockBytes / 16; i += kConsumers)
      to[i] = from[i];
    // Bulk copies of other CTAs read these bytes.
    ptx::fence_proxy_async_global();
    sync_consumers();
    if (threadIdx.x == 0) ptx::add_release(p.done + item.tile_index, 1);
  }

 private:
  template <int kN, class S>
  static __device__ void activate(const Params& p, const Item& item, const Sums<kN>& sums,
                                  const S& shared, uint32_t (&h)[kBlocks][kN / 8]) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const float gate_factor = p.scale2[item.tile.expert * 3] * p.gate_up.factor;
    const float up_factor = p.scale2[item.tile.expert * 3 + 1] * p.gate_up.factor;
#pragma unroll
    for (int n = 0; n < kN / 8; ++n) {
      const Column* const columns = shared.columns + 8 * n + lane % 4 * 2;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const bool exists = (item.first_strip + strip_of(b)) * 8 + lane / 4 < p.gate_up.rows;
        float value[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const Column column = columns[i];
          const float gate = rounded(sums[b][4 * n + i] * (column.factor * gate_factor));
          const float up = rounded(sums[b][4 * n + 2 + i] * (column.factor * up_factor));
          value[i] = exists ? swiglu(gate, up, column.weight, p.limit) : 0;
        }
        h[b][n] = ptx::pack_bf16x2(value[0], value[1]);
      }
    }
  }

  // Over the rows of the warp; NaN does not count.
  template <int kN>
  static __device__ void find_largest(const uint32_t (&h)[kBlocks][kN / 8], uint32_t* largest) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int n = 0; n < kN / 8; ++n) {
      __nv_bfloat162 most =
          __hmax2(__habs2(ptx::as_bf162(h[0][n])), __habs2(ptx::as_bf162(h[1][n])));
#pragma unroll
      for (int step = 4; step < kWarp; step *= 2)
        most = __hmax2(most, ptx::as_bf162(__shfl_xor_sync(~0u, ptx::as_bits(most), step)));
      if (lane < 4) largest[4 * n + lane] = ptx::as_bits(most);
    }
  }

  // The scales of two columns.
  template <class S>
  static __device__ void choose_scale(const Params& p, S& shared) {
    const int two = static_cast<int>(threadIdx.x);
    __nv_bfloat162 most = ptx::as_bf162(shared.largest[0][two]);
#pragma unroll
    for (int warp = 1; warp < kConsumerWarps; ++warp)
      most = __hmax2(most, ptx::as_bf162(shared.largest[warp][two]));
    float inverse[2], power[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint8_t scale = q8_scale(to_float(i == 0 ? most.x : most.y));
      const int exponent = p.hidden_exponent - weight_exponent(shared.columns[2 * two + i].weight);
      inverse[i] = inverse_scale(scale);
      power[i] = __uint_as_float(static_cast<uint32_t>(max(0, scale + 127 + exponent)) << 23);
    }
    shared.inverse[two] = {inverse[0], inverse[1]};
    shared.power[two] = ptx::pack_f16x2(power[0], power[1]);
  }

  static __device__ uint32_t quantize(uint32_t h, float2 inverse, uint32_t power) {
    const float2 value = __bfloat1622float2(ptx::as_bf162(h));
    const auto codes = __nv_cvt_float2_to_fp8x2(
        make_float2(value.x * inverse.x, value.y * inverse.y), __NV_SATFINITE, __NV_E4M3);
    const __half2_raw exact = __nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3);
    return ptx::as_bits(__hmul2(__half2(exact), ptx::as_half2(power)));
  }
};

// y = sums * factors, in bf16.
struct StoreRows {
  static constexpr int kHalf = 64;  // columns that staging has room for
  static constexpr int kRowBytes = kTileRows * 2;

  template <int kN, class S>
  static __device__ void finish(const Params& p, const Item& item, const Sums<kN>& sums,
                                S& shared) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const float factor = p.scale2[item.tile.expert * 3 + 2] * p.down.factor;
    load_columns<false>(p, item, shared);
#pragma unroll
    for (int first = 0; first < kN; first += kHalf) {
      if (first > 0) sync_consumers();  // the columns before are stored
#pragma unroll
      for (int n = first / 8; n < std::min(first + kHalf, kN) / 8; ++n) {
        const float low = shared.columns[8 * n + lane % 4 * 2].factor * factor;
        const float high = shared.columns[8 * n + lane % 4 * 2 + 1].factor * factor;
        uint32_t four[4];  // rows g, g + 8 of block 0, then of block 1
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* const two = sums[i / 2] + 4 * n + i % 2 * 2;
          four[i] = ptx::pack_bf16x2(two[0] * low, two[1] * high);
        }
        const int column = 8 * n + lane % 8, vector = 2 * strip_of(lane / 16) + lane / 8 % 2;
        ptx::stmatrix_x4_trans(ptx::smem_address(staged(shared, column - first, vector)), four);
      }
      sync_consumers();
      store(p, item, first, shared);
    }
  }

 private:
  // Vector `v` of 8 rows of a column.
  template <class S>
  static __device__ unsigned char* staged(S& shared, int column, int v) {
    return shared.staging + column * kRowBytes + (v ^ column % 8) * 16;
  }

  // A warp stores a column at a time.
  template <class S>
  static __device__ void store(const Params& p, const Item& item, int first, S& shared) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    const int row = item.first_strip * kUnitRows + 8 * lane;
    const int columns = min(kHalf, item.tile.pairs - first);
    if (row >= p.down.rows) return;
    for (int i = warp; i < columns; i += kConsumerWarps) {
      bf16* const to = p.y + (item.tile.first_slot + first + i) * p.y_stride + row;
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(staged(shared, i, lane));
    }
  }
};

}  // namespace dsv4::gemm::grouped
