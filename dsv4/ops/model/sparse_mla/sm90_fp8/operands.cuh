// KV entries in shared memory -> A operands of wgmma in registers. No decoded copy is stored.
//
// e4m3 -> f16 is exact, and so is the product with a power of two from 2^-15 to 2^7. Below,
// g = lane / 4 and j = lane % 4.
//
// K (S^T = K Q^T, 16 keys per warp): ldmatrix gives lane (g, j) four consecutive dims 4j .. 4j + 3
// of keys g and g + 8. They are used as k indices 2j, 2j + 1, 2j + 8, 2j + 9, so q is stored in
// that order: dims 16 i + {0 1 4 5 8 9 12 13 | 2 3 6 7 10 11 14 15}.
//
// V (O^T = V^T P^T, 16 dims per warp): transposed ldmatrix gives lane (g, j) dims 2g and 2g + 1 of
// keys 2j and 2j + 1. Dim 2g is used as row g of the product and 2g + 1 as row g + 8, so that a
// lane holds neighboring dims.

#pragma once

#include "dsv4/device/ptx/convert.cuh"
#include "dsv4/device/ptx/ldmatrix.cuh"
#include "dsv4/device/ptx/packed.cuh"
#include "dsv4/device/ptx/thread.cuh"
#include "dsv4/ops/model/sparse_mla/sm90_fp8/config.cuh"

namespace dsv4::sparse_mla_kernel::sm90_fp8 {

using ptx::thread_index;

// Position of a thread. Each function computes it again: values kept across functions would spill
// to local memory, and with this much shared memory there is hardly an L1 to hold them.
struct Lane {
  int lane, wg, warp, g, j;  // warp: of its warpgroup
};
__device__ inline Lane this_lane() {
  const int thread = thread_index();
  return {.lane = thread % kWarp,
          .wg = thread / kWarpgroup,
          .warp = thread / kWarp % 4,
          .g = thread % kWarp / 4,
          .j = thread % 4};
}

using Codes = uint32_t[4];         // what one ldmatrix loads: e4m3 codes, or 16-bit RoPE values
using Fragments = uint32_t[2][4];  // the same as f16: A of two wgmma, k = 16 each

// bf16 to f16: exact for magnitudes from 2^-17 to 65280.
__device__ inline uint32_t f16_of_bf16(uint32_t pair) {
  return ptx::pack_f16x2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000));
}
// Whether bf16 values of this magnitude fit f16: 65280 is the largest that does.
__device__ inline bool fits_f16(__nv_bfloat162 magnitude) {
  return __hble2(magnitude, __float2bfloat162_rn(65280.f));
}

template <class KvFormat>
__device__ uint32_t chunk_address(uint32_t stage, int key, int chunk) {
  return stage + key * KvFormat::kStride + 16 * chunk;
}

// All scales of one key in shared memory, as f16.
template <class KvFormat>
struct KeyScales {
  uint32_t pairs[KvFormat::kFloatScales ? 2 : 4];

  __device__ KeyScales(const uint8_t* key) {
    const uint4 all = *reinterpret_cast<const uint4*>(key + KvFormat::kKeyScalesAt);
    if constexpr (KvFormat::kFloatScales) {
      pairs[0] = ptx::pack_f16x2(__uint_as_float(all.x), __uint_as_float(all.y));
      pairs[1] = ptx::pack_f16x2(__uint_as_float(all.z), __uint_as_float(all.w));
    } else {
      pairs[0] = all.x, pairs[1] = all.y, pairs[2] = all.z, pairs[3] = all.w;
    }
  }
  // The scale of a group in both halves.
  __device__ uint32_t broadcast(int group) const {
    const __half2 two = ptx::as_half2(pairs[group / 2]);
    return ptx::as_bits(group % 2 == 0 ? __low2half2(two) : __high2half2(two));
  }
};

// K of the warp's 16 keys, which begin at key `first` of a stage.
template <class KvFormat>
struct KeyOperand {
  uint32_t base;  // address of this lane's ldmatrix row, in chunk 0 or 1

  __device__ KeyOperand(const Lane& at, uint32_t stage, int first) {
    base = chunk_address<KvFormat>(stage, first + at.lane % 16, at.lane / 16);
  }
  // Codes of dims 32 i .. 32 i + 31.
  __device__ void load(int i, Codes& r) const { ptx::ldmatrix_x4(r, base + 32 * i); }
  // scales: of keys g and g + 8, in both halves.
  __device__ static void decode(const Codes& r, const uint32_t (&scales)[2], Fragments& a) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      ptx::cvt_e4m3x4_to_f16x2_scaled(r[n], scales[n % 2], scales[n % 2], a[n / 2][n % 2],
                                      a[n / 2][n % 2 + 2]);
    }
  }
  // RoPE dims 16 i .. 16 i + 15: A of one wgmma.
  __device__ void load_rope(int i, Codes& a) const {
    ptx::ldmatrix_x4(a, base + KvFormat::kRopeAt + 32 * i);
  }
};

// V of the 32 keys of a stage; a warp has 16 of every 64 dims.
template <class KvFormat>
struct ValueOperand {
  uint32_t base;  // address of this lane's ldmatrix row in the warpgroup's first 64 dims

  // stage: address of the warpgroup's first dim of key 0
  __device__ ValueOperand(const Lane& at, uint32_t stage) {
    // opaque(): otherwise the compiler computes it again at every use
    base = ptx::opaque(chunk_address<KvFormat>(stage, at.lane, at.warp));
  }
  // Codes of dims 64 tile + 16 warp .. + 15.
  __device__ void load(int tile, Codes& r) const { ptx::ldmatrix_x4_trans(r, base + 64 * tile); }
  // scales: of keys 8 n + 2j and 8 n + 2j + 1.
  __device__ static void decode(const Codes& r, const uint4& scales, Fragments& a) {
    const uint32_t pairs[4] = {scales.x, scales.y, scales.z, scales.w};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const uint32_t codes = __byte_perm(r[n], 0, 0x3120);
      ptx::cvt_e4m3x4_to_f16x2_scaled(codes, pairs[n], pairs[n], a[n / 2][n % 2 * 2],
                                      a[n / 2][n % 2 * 2 + 1]);
    }
  }
  // RoPE values of keys 0 .. 15 and 16 .. 31, as stored (bf16). Here row g of the product is dim g
  // and row g + 8 is dim g + 8.
  __device__ void load_rope(const Lane& at, Codes& low_keys, uint4& high_keys) const {
    // `base` includes the offset of dims 256 .. 511 and of this lane's row of codes: remove both.
    const uint32_t codes = chunk_address<KvFormat>(0, at.lane, at.warp);
    const uint32_t rope = chunk_address<KvFormat>(
        0, at.lane / 16 * 8 + at.lane % 8, KvFormat::kRopeAt / 16 + 2 * at.warp + at.lane / 8 % 2);
    const uint32_t first = base + (rope - codes - kDimV / 2);
    ptx::ldmatrix_x4_trans(low_keys, first);
    Codes high;
    ptx::ldmatrix_x4_trans(high, first + 16 * KvFormat::kStride);
    high_keys = {high[0], high[1], high[2], high[3]};
  }
  __device__ static void decode_rope(const Codes& low_keys, const uint4& high_keys, Fragments& a) {
    const uint32_t high[4] = {high_keys.x, high_keys.y, high_keys.z, high_keys.w};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      a[0][n] = f16_of_bf16(low_keys[n]);
      a[1][n] = f16_of_bf16(high[n]);
    }
  }
};

}  // namespace dsv4::sparse_mla_kernel::sm90_fp8
