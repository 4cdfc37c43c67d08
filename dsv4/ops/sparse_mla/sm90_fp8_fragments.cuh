// Raw rows in the ring -> A operands of wgmma in registers. Nothing is written back: this is where
// the kernel saves its shared memory.
//
// e4m3 -> f16 is exact, times a power of two from 2^-15 to 2^7 too. With g = lane / 4, j = lane %
// 4:
//
// Keys (S^T = K Q^T, 16 keys a warp): ldmatrix gives lane (g, j) four consecutive dims 4j .. 4j + 3
// of keys g and g + 8. They are taken as k indices 2j, 2j + 1, 2j + 8, 2j + 9, so q is stored in
// that order: dims 16 i + {0 1 4 5 8 9 12 13 | 2 3 6 7 10 11 14 15}.
//
// Values (O^T = V^T P^T, 16 dims a warp): transposed ldmatrix gives dims 2g, 2g + 1 of keys 2j,
// 2j + 1. Dim 2g is taken as row g of the product, 2g + 1 as row g + 8: neighbours in one lane.

#pragma once

#include "dsv4/device/ptx/convert.cuh"
#include "dsv4/device/ptx/ldmatrix.cuh"
#include "dsv4/device/ptx/packed.cuh"
#include "dsv4/device/ptx/thread.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_shared.cuh"

namespace dsv4::sm90_fp8 {

// Which part of a fragment a thread has. Asked for again in every phase: what would be kept from
// one to the next would be spilled, and there is hardly an L1 beside this much shared memory.
struct Lane {
  int lane, wg, warp, g, j;  // warp: of its warpgroup
};
using ptx::thread_index;
__device__ inline Lane this_lane() {
  const int thread = thread_index();
  return {.lane = thread % kWarp,
          .wg = thread / kGroupThreads,
          .warp = thread / kWarp % 4,
          .g = thread % kWarp / 4,
          .j = thread % 4};
}

// One ldmatrix: operands of two products, 16 k each.
using Fragments = uint32_t[2][4];

__device__ inline uint32_t bits_of(__half2 pair) {
  return reinterpret_cast<const uint32_t&>(pair);
}
__device__ inline __half2 as_half2(uint32_t bits) {
  return reinterpret_cast<const __half2&>(bits);
}
__device__ inline uint32_t pack_f16(float low, float high) {
  return bits_of(__floats2half2_rn(low, high));
}
__device__ inline uint32_t pack_bf16(float low, float high) {
  return ptx::as_bits(__floats2bfloat162_rn(low, high));
}
// A pair of bf16 to f16: exact from 2^-17 to 65280.
__device__ inline uint32_t f16_of_bf16(uint32_t pair) {
  return pack_f16(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000));
}
// Whether bf16s of this magnitude can be f16s: 65280 is the last one.
__device__ inline bool fits_f16(__nv_bfloat162 magnitude) {
  return __hble2(magnitude, __float2bfloat162_rn(65280.f));
}

template <class Row>
__device__ uint32_t piece_address(uint32_t slot, int row, int piece) {
  return slot + row * Row::kStride + 16 * piece;
}

using Raw = uint32_t[4];  // what one ldmatrix gives

// All scales of a row in the ring, as f16.
template <class Row>
struct KeyScales {
  uint32_t pairs[Row::kFloatScales ? 2 : 4];

  __device__ KeyScales(const uint8_t* row) {
    const uint4 all = *reinterpret_cast<const uint4*>(row + Row::kScalesAt);
    if constexpr (Row::kFloatScales) {
      pairs[0] = pack_f16(__uint_as_float(all.x), __uint_as_float(all.y));
      pairs[1] = pack_f16(__uint_as_float(all.z), __uint_as_float(all.w));
    } else {
      pairs[0] = all.x, pairs[1] = all.y, pairs[2] = all.z, pairs[3] = all.w;
    }
  }
  // That of a group, for two values at a time.
  __device__ uint32_t twice(int group) const {
    const __half2 two = as_half2(pairs[group / 2]);
    return bits_of(group % 2 == 0 ? __low2half2(two) : __high2half2(two));
  }
};

// Keys of the warp's 16 rows, from row `first` of a slot.
template <class Row>
struct KeyFragments {
  uint32_t base;  // of this lane's ldmatrix row, piece 0 or 1

  __device__ KeyFragments(const Lane& at, uint32_t slot, int first) {
    base = piece_address<Row>(slot, first + at.lane % 16, at.lane / 16);
  }
  // Codes of dims 32 i ..
  __device__ void load(int i, Raw& r) const { ptx::ldmatrix_x4(r, base + 32 * i); }
  // scales: of keys g and g + 8, twice each.
  __device__ static void decode(const Raw& r, const uint32_t (&scales)[2], Fragments& a) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      ptx::cvt_e4m3x4_to_f16x2_scaled(r[n], scales[n % 2], scales[n % 2], a[n / 2][n % 2],
                                      a[n / 2][n % 2 + 2]);
    }
  }
  // RoPE dims 16 i .. 16 i + 15: one product.
  __device__ void load_rope(int i, Raw& a) const {
    ptx::ldmatrix_x4(a, base + Row::kRopeAt + 32 * i);
  }
};

// Values of 32 keys, a whole slot; the warp's 16 dims of every 64.
template <class Row>
struct ValueFragments {
  uint32_t base;  // of this lane's ldmatrix row in the warpgroup's first 64 dims

  // slot: address of the warpgroup's first dim of key 0
  __device__ ValueFragments(const Lane& at, uint32_t slot) {
    // Not to be computed again at every use.
    base = ptx::opaque(piece_address<Row>(slot, at.lane, at.warp));
  }
  // Codes of dims 64 tile + 16 warp ..
  __device__ void load(int tile, Raw& r) const { ptx::ldmatrix_x4_trans(r, base + 64 * tile); }
  // scales: of keys 8 n + 2j, + 1.
  __device__ static void decode(const Raw& r, const uint4& scales, Fragments& a) {
    const uint32_t pairs[4] = {scales.x, scales.y, scales.z, scales.w};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const uint32_t codes = __byte_perm(r[n], 0, 0x3120);
      ptx::cvt_e4m3x4_to_f16x2_scaled(codes, pairs[n], pairs[n], a[n / 2][n % 2 * 2],
                                      a[n / 2][n % 2 * 2 + 1]);
    }
  }
  // RoPE values of keys 0 .. 15 and 16 .. 31 as they are; here row g of the product is dim g, row
  // g + 8 is dim g + 8.
  __device__ void load_rope(const Lane& at, Raw& low_keys, uint4& high_keys) const {
    // `base` is of the upper half of the dims, in this lane's row for codes.
    const uint32_t codes = piece_address<Row>(0, at.lane, at.warp);
    const uint32_t rope = piece_address<Row>(0, at.lane / 16 * 8 + at.lane % 8,
                                             Row::kRopeAt / 16 + 2 * at.warp + at.lane / 8 % 2);
    const uint32_t first = base + (rope - codes - kWidthV / 2);
    ptx::ldmatrix_x4_trans(low_keys, first);
    Raw high;
    ptx::ldmatrix_x4_trans(high, first + 16 * Row::kStride);
    high_keys = {high[0], high[1], high[2], high[3]};
  }
  __device__ static void decode_rope(const Raw& low_keys, const uint4& high_keys, Fragments& a) {
    const uint32_t high[4] = {high_keys.x, high_keys.y, high_keys.z, high_keys.w};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      a[0][n] = f16_of_bf16(low_keys[n]);
      a[1][n] = f16_of_bf16(high[n]);
    }
  }
};

}  // namespace dsv4::sm90_fp8
