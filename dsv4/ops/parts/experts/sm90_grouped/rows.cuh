// Rows of x for the grouped kernel: Q8 of a token, in the layout of its tiles, once for each of its
// pairs; or Q8 of h of each pair, whose rows are in the order of the experts (halves.h), as are the
// pairs of a tile. Columns past the end are zeros. Pairs without a slot are left out.
//
//   bf16   x' = code * 2^s_group, exact
//   e4m3   x' = code, and 2^s_group is a factor of the column in the step of the group
//   f16    x' = code * 2^(kTop + s_group - s_row)    s_row: the largest exponent among the groups
//
// In f16 it is exact while a group is within 2^21 of the row's largest: a code has 4 significant
// bits and 18 binades, f16 has 11 and 40 with subnormals. Smaller groups are off by at most 2^-40
// of the row's largest value.

#pragma once

#include <cuda_fp8.h>

#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/packed.cuh"
#include "dsv4/device/ptx/prmt.cuh"
#include "dsv4/formats/quant_group.h"
#include "dsv4/ops/gemm/sm90/experts/entries.h"
#include "dsv4/ops/gemm/sm90/grouped/epilogue.cuh"

namespace dsv4::experts_kernel::sm90_grouped {

using gemm::grouped::Tile, gemm::grouped::XForm;

// Largest exponent of x' over its code: 448 * 2^7 is below 65504.
inline constexpr int kTop = 7;
inline constexpr int kRowThreads = 128,
                     kVector = 8;      // values that a thread has at a time
inline constexpr int kRowVectors = 8;  // of a thread: 8,192 columns
inline constexpr int kGroupThreads = 128 / kVector;

struct RowsParams {
  const bf16* x;  // [t, d]; of h [pairs, d], where t counts pairs and k is 1
  int64_t x_stride;
  bool x_is_aligned;               // rows begin on 16 bytes
  gemm::experts::Choices choices;  // with `weight`
  int columns, chunks, slots;      // d, ceil(d / 256), k
  const Tile* tiles;
  const int32_t *slot_of, *tile_of;  // [t, k]
  const int32_t* first_pair;         // [tiles] of h (Lists); null: rows of x are those of tokens
  XForm form, hidden_form;           // of x', of h' (gemm::grouped::Params)
  int hidden_exponent;
  std::byte* rows;     // [slots] rows of x'
  int64_t slot_bytes;  // from one to the next
  // [slots] what sums of this product lack; what sums of down lack, or null; the router's weight,
  // or null: then only `factor` is stored
  float *factor, *hidden_factor, *weight;
};

__device__ inline float power_of_two(int exponent) {
  return __uint_as_float(static_cast<uint32_t>(exponent) << 23);
}

// Eight values of a row as codes, and the exponent of their group.
struct CodedVector {
  uint32_t codes[2];
  int exponent;  // UE8M0

  CodedVector() = default;
  // Called by all threads of a group together.
  __device__ CodedVector(const uint4& values) {
    const uint32_t words[4] = {values.x, values.y, values.z, values.w};
    float2 v[4];
    float largest = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[i] = __bfloat1622float2(ptx::as_bf162(words[i]));
      largest = fmaxf(largest, fmaxf(fabsf(v[i].x), fabsf(v[i].y)));  // drops NaN
    }
#pragma unroll
    for (int step = 1; step < kGroupThreads; step *= 2)
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
    const uint8_t scale = q8_scale(largest);
    const float inverse = inverse_scale(scale);
    exponent = scale;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto two = [&](float2 pair) -> uint32_t {
        return __nv_cvt_float2_to_fp8x2(make_float2(pair.x * inverse, pair.y * inverse),
                                        __NV_SATFINITE, __NV_E4M3);
      };
      codes[i] = two(v[2 * i]) | two(v[2 * i + 1]) << 16;
    }
  }

  // x' for f16, of a row with this largest exponent, or for bf16.
  __device__ uint4 values(int largest, bool is_bf16) const {
    const int power = is_bf16 ? exponent : max(127 + kTop + exponent - largest, 0);
    const float factor = __uint_as_float(static_cast<uint32_t>(power) << 23);
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto code = static_cast<__nv_fp8x2_storage_t>(codes[i / 2] >> (16 * (i % 2)));
      const float2 value = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(code, __NV_E4M3)));
      const float low = value.x * factor, high = value.y * factor;
      words[i] = is_bf16 ? ptx::pack_bf16x2(low, high) : ptx::pack_f16x2(low, high);
    }
    return {words[0], words[1], words[2], words[3]};
  }
};

// Stores vectors `v` of eight values and, once for each group, its factor. All lanes of a warp take
// part, also of a column that does not exist. rows: of the tile
__device__ inline void store_codes(const CodedVector& coded, int columns, int column, int v,
                                   std::byte* rows, bool exists = true) {
  // Two lanes have 16 columns. They exchange pairs of codes, and each stores half of the vector.
  const int second = v % 2;
  const uint32_t given = second == 0 ? coded.codes[1] : coded.codes[0];
  const uint32_t mine = second == 0 ? coded.codes[0] : coded.codes[1];
  const uint32_t other = __shfl_xor_sync(~0u, given, 1);
  const uint32_t first_half = second == 0 ? mine : other, second_half = second == 0 ? other : mine;
  if (!exists) return;
  *reinterpret_cast<uint2*>(rows + gemm::grouped::vector_at(XForm::kE4m3, columns, column, v / 2) +
                            second * 8) = {ptx::prmt(first_half, second_half, 0x5410),
                                           ptx::prmt(first_half, second_half, 0x7632)};
  if (v % kGroupThreads == 0)
    *reinterpret_cast<float*>(rows + gemm::grouped::factor_at(columns, column, v / kGroupThreads)) =
        __uint_as_float(static_cast<uint32_t>(coded.exponent) << 23);
}

// Vector `v` of a row; zeros past its end.
__device__ inline uint4 load_vector(const RowsParams& p, const bf16* row, int v) {
  const int first = v * kVector;
  if (p.x_is_aligned && first + kVector <= p.columns)
    return *reinterpret_cast<const uint4*>(row + first);
  uint32_t words[kVector / 2] = {};
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    if (first + i < p.columns)
      words[i / 2] |= uint32_t{__bfloat16_as_ushort(row[first + i])} << (16 * (i % 2));
  }
  return {words[0], words[1], words[2], words[3]};
}

__device__ inline int64_t row_of_pair(const RowsParams& p, int64_t t) {
  if (p.first_pair == nullptr) return t;
  const int tile = p.tile_of[t];
  return p.first_pair[tile] + p.slot_of[t] - p.tiles[tile].first_slot;
}

// Whether tile_rows_kernel takes the call: rows of h, where groups of 128 columns do not see each
// other.
DSV4_HD inline bool takes_groups(const RowsParams& p) {
  return p.first_pair != nullptr && p.form != XForm::kF16;
}
DSV4_HD inline int groups_of(const RowsParams& p) {
  return p.chunks * gemm::kUnitColumns / (kVector * kGroupThreads);
}

// What a slot has besides its row.
__device__ inline void store_factors(const RowsParams& p, int slot, int pair, float factor) {
  p.factor[slot] = factor;
  if (p.weight == nullptr) return;
  const float weight = p.choices.weight(pair);
  p.weight[slot] = weight;
  if (p.hidden_factor == nullptr) return;
  const int exponent = gemm::grouped::weight_exponent(weight) - p.hidden_exponent;
  p.hidden_factor[slot] = p.hidden_form == XForm::kF16 ? power_of_two(exponent) : 1.f;
}

// grid: t
__global__ void __launch_bounds__(kRowThreads) rows_kernel(const __grid_constant__ RowsParams p) {
  ptx::pdl_start();
  __shared__ int warp_largest[kRowThreads / kWarp];
  const int64_t t = blockIdx.x;
  if (p.first_pair != nullptr && p.slot_of[t] < 0) return;
  const bf16* const row = p.x + row_of_pair(p, t) * p.x_stride;
  const int thread = static_cast<int>(threadIdx.x);
  const int vectors = p.chunks * gemm::kUnitColumns / kVector;
  CodedVector coded[kRowVectors];
  int largest = 0;
#pragma unroll
  for (int i = 0; i < kRowVectors; ++i) {
    const int v = i * kRowThreads + thread;
    if (i * kRowThreads >= vectors) break;
    coded[i] = CodedVector(load_vector(p, row, v));
    if (v * kVector < p.columns) largest = max(largest, coded[i].exponent);
  }
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2)
    largest = max(largest, __shfl_xor_sync(~0u, largest, step));
  if (thread % kWarp == 0) warp_largest[thread / kWarp] = largest;
  __syncthreads();
#pragma unroll
  for (const int other : warp_largest) largest = max(largest, other);

  for (int k = 0; k < p.slots; ++k) {
    const int slot = p.slot_of[t * p.slots + k];
    if (slot < 0) continue;
    const Tile tile = p.tiles[p.tile_of[t * p.slots + k]];
    std::byte* const rows = p.rows + tile.first_slot * p.slot_bytes;
#pragma unroll
    for (int i = 0; i < kRowVectors; ++i) {
      const int v = i * kRowThreads + thread;
      if (v >= vectors) break;
      const int column = slot - tile.first_slot;
      if (p.form == XForm::kE4m3) {
        store_codes(coded[i], tile.columns, column, v, rows);
      } else {
        *reinterpret_cast<uint4*>(rows +
                                  gemm::grouped::vector_at(p.form, tile.columns, column, v)) =
            coded[i].values(largest, p.form == XForm::kBf16);
      }
    }
    if (thread == 0)
      store_factors(p, slot, static_cast<int>(t) * p.slots + k,
                    p.form == XForm::kF16 ? power_of_two(largest - kTop) : 1.f);
  }
}

// A CTA has a group of all pairs of a tile, whose bytes are one run, or two in bf16. Rows of x,
// which it would read once for each pair of a token, take longer in it than in rows_kernel.
// end: the number of tiles. grid: tiles that there may be, times groups
__global__ void __launch_bounds__(kRowThreads)
    tile_rows_kernel(const __grid_constant__ RowsParams p, const int32_t* end) {
  constexpr int kRows = kRowThreads / kGroupThreads, kInFlight = 4;
  ptx::pdl_start();
  const int groups = groups_of(p), index = static_cast<int>(blockIdx.x) / groups,
            group = static_cast<int>(blockIdx.x) % groups, thread = static_cast<int>(threadIdx.x);
  if (index >= *end) return;
  const Tile tile = p.tiles[index];
  const int v = group * kGroupThreads + thread % kGroupThreads;
  const bf16* const first = p.x + p.first_pair[index] * p.x_stride;
  std::byte* const rows = p.rows + tile.first_slot * p.slot_bytes;
  if (group == 0 && thread < tile.pairs) p.factor[tile.first_slot + thread] = 1.f;
#pragma unroll 1
  for (int column = thread / kGroupThreads; column - thread / kGroupThreads < tile.pairs;
       column += kRows * kInFlight) {
    uint4 values[kInFlight] = {};
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int at = column + i * kRows;
      if (at < tile.pairs) values[i] = load_vector(p, first + at * p.x_stride, v);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int at = column + i * kRows;
      const CodedVector coded(values[i]);
      if (p.form == XForm::kE4m3) {
        store_codes(coded, tile.columns, at, v, rows, at < tile.pairs);
      } else if (at < tile.pairs) {
        *reinterpret_cast<uint4*>(rows + gemm::grouped::vector_at(p.form, tile.columns, at, v)) =
            coded.values(0, true);
      }
    }
  }
}

}  // namespace dsv4::experts_kernel::sm90_grouped
