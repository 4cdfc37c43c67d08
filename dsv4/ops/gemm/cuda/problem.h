// One weight product on CUDA, as the ops linear and experts pose it (gemm.h).
//
//   out[m, p * n + i] = sum_c x[row(m), p * x_projection_stride + c] * w(m, p)[i, c]
//
// A problem has one or more projections p: sections of out's columns with a weight each. Every row
// of out is multiplied with one matrix of each projection's weight. Rows come in tiles that share
// their matrices, so that a matrix is decoded once for a whole tile:
//
//               rows of out (M)                  tiles                  projections
//   linear      the tokens                       by position            the groups
//   experts     token-expert pairs, by expert    listed on the device   gate and up; down is alone
//
// Two sets of kernels: GEMV (gemv.cuh; f32 arithmetic, batch invariant) and tensor cores (mma.cuh
// and small_m.cuh; weights as bf16, or as f16 where x is f16). Callers check shapes and dtypes.

#pragma once

#include <cstdint>

#include "dsv4/device/device.h"
#include "dsv4/formats/weight.h"

namespace dsv4::gemm::cuda {

// `rows` rows of out from `first_row` on, all multiplied with the matrices of index `matrix`.
struct RowTile {
  int32_t matrix, first_row, rows;
};

// Where a matrix is that has no fixed distance from others.
struct MatrixPlace {
  const std::byte *data, *scale;
  const float* codebook;
  int64_t row_bytes, scale_row_bytes;
  float scale2;
};

// Matrices of equal shape and format at equal distances in memory: the experts of a layer, or the
// groups of a block-diagonal weight.
struct StridedWeight {
  WeightFormat format = WeightFormat::kF32;
  int bits = 0;
  bool scale_is_f32 = false;
  const std::byte* data = nullptr;
  const std::byte* scale = nullptr;
  const float* codebook = nullptr;
  int64_t row_bytes = 0, matrix_bytes = 0;  // from one row, one matrix to the next
  int64_t scale_row_bytes = 0, scale_matrix_bytes = 0;
  int64_t codebook_stride = 0;     // floats from one matrix's codebook to the next
  float scale2 = 1.f;              // of every matrix, unless scale2s is given
  const float* scale2s = nullptr;  // [matrices], in device memory
  // [matrices], in device memory: what holds instead of all of the above but format, bits and
  // scale_is_f32. Null: the distances hold.
  const MatrixPlace* places = nullptr;
};
StridedWeight single_matrix(const WeightView& weight);

struct Problem {
  // x: rows of f32, bf16, f16, or E4M3 with one E8M0 scale per 128 columns
  const std::byte* x = nullptr;
  DType x_dtype = DType::kF32;
  int64_t x_stride = 0,
          x_projection_stride = 0;  // elements from one row, one projection to the next
  const uint8_t* x_scale = nullptr;
  int64_t x_scale_stride = 0, x_scale_projection_stride = 0;
  const int32_t* gather = nullptr;  // [m] row of x for each row of out; null: row i of x for row i

  std::byte* out = nullptr;
  DType out_dtype = DType::kF32;  // or BF16, F16
  int64_t out_stride = 0;

  int n = 0, k = 0;  // of one matrix
  int projections = 1;
  // True: projection p uses matrix p of weight[0]. False: it uses weight[p].
  bool projection_is_matrix = false;
  StridedWeight weight[2];

  int64_t m = 0;                       // rows of out
  const RowTile* tiles = nullptr;      // null: tile i is rows [i * tile_m, (i + 1) * tile_m)
  const int32_t* num_tiles = nullptr;  // with `tiles`, in device memory
  int64_t max_tiles = 0;               // with `tiles`
  int tile_m = 1;                      // rows of out in a full tile
  int weight_rows_per_token = 0;  // rows of weights that one token is multiplied with; sets split-K
};

// Tiles that a grid must have room for.
inline int64_t tile_slots(const Problem& p) {
  return p.tiles != nullptr ? p.max_tiles : (p.m + p.tile_m - 1) / p.tile_m;
}

// Whether rows start and end where the decoders of weight_decode.cuh need them to.
bool in_whole_units(const Problem& problem);

// The tile size that wastes least when the rows of out are spread over this many matrices.
int gemv_tile(const Device& device, const Problem& problem, int64_t matrices);
void run_gemv(Device& device, const Problem& problem);

// Tiles of at most this many rows take x in any dtype but f32; larger tiles need bf16 or f16.
inline constexpr int kSmallM = 16;
int mma_tile(const Device& device, const Problem& problem, int64_t matrices);
// Returns nullptr, or why the tensor core kernels cannot take this problem. x is bf16, f16, or will
// be widened.
const char* reject_mma(const Problem& problem);
// The largest relative error of a weight there: 0 where its values are numbers of the operands'
// type, as those of BF16, MXFP4, NVFP4 and FP8 with UE8M0 scales are of bf16. Others are rounded:
// to bf16, or to f16 with f16 activations. In f16 values below 2^-14 have fewer bits; the error is
// then 2^-25, at most 2^-11 of the smallest scale.
inline double mma_rounding(const WeightView& w, DType x = DType::kBF16) {
  const bool f32_scales = !w.scale.empty() && w.scale.dtype == DType::kF32;
  if (w.format != WeightFormat::kKbit && !f32_scales) return 0;
  return x == DType::kF16 ? 0x1p-11 : 0x1p-9;
}
// Replaces x by a bf16 copy: exact for E4M3 with power-of-two scales. The copy is taken from the
// workspace and lives as long as the caller's scope.
void widen_activations(Device& device, Problem& problem);
void run_mma(Device& device, const Problem& problem);

}  // namespace dsv4::gemm::cuda
