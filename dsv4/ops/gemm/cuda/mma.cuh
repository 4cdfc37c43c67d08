// The tensor core kernels of problem.h: weights decoded to bf16 or f16 in shared memory, f32 sums.
//
// A CTA computes out[kTile rows, kN rows of the weight]. Each step covers kSlices slices of 64
// columns: a thread decodes 32 columns of one weight row of one slice, and copies four 16-byte
// chunks of x. Both operands of the next step arrive while the warps multiply this step (double
// buffering). Small tiles cover several slices per step, each computed by different warps, so that
// enough bytes are in flight.
//
//   kTile   kN    kSlices   warps: M x N x slices   tile of a warp
//   128     128   1         2 x 4 x 1               64 x 32
//   64      64    2         2 x 2 x 2               32 x 32
//   32      32    4         2 x 1 x 4               16 x 32
//
// A slice of a row is 128 bytes in shared memory; its 16-byte chunk c is stored at c ^ (row % 8),
// so that ldmatrix, cp.async and the stores of decoded weights are free of bank conflicts.
//
// Exact operands: an e4m3 code times a power of two has 4 significant bits, e2m1 times a power of
// two 2, e2m1 times e4m3 6, and bf16 is exact by itself. All of these are bf16 numbers, and
// products of two bf16 numbers are exact in f32. k-bit values, and fp8 codes with f32 scales, are
// rounded to bf16: a relative error of at most 2^-9. Operands are f16 where x is (operand.cuh):
// NVFP4 and F16 weights are exact, k-bit values are rounded to f16.

#pragma once

#include <type_traits>

#include "dsv4/device/launch.cuh"
#include "dsv4/device/ptx/cp_async.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/ldmatrix.cuh"
#include "dsv4/device/ptx/shared_memory.cuh"
#include "dsv4/ops/gemm/cuda/operand.cuh"
#include "dsv4/ops/gemm/cuda/tile.cuh"

namespace dsv4::gemm::cuda {

inline constexpr int kMmaThreads = 256;
inline constexpr int kSliceColumns = 64, kSliceChunks = 8;  // a chunk: 8 columns, 16 bytes
inline constexpr int kThreadColumns = 32;
inline constexpr int kOperandBytes = 128 * kSliceColumns * 2;  // of one operand in a step

template <int kTile>
struct MmaShape {
  static constexpr int kN = kTile, kSlices = 128 / kN;
  static constexpr int kWarpsM = 2, kWarpsN = 4 / kSlices;
  static constexpr int kWarpM = kTile / kWarpsM, kWarpN = 32;  // the tile of a warp
  static constexpr int kMmaM = kWarpM / 16, kMmaN = kWarpN / 8;
  static_assert(kWarpsM * kWarpsN * kSlices * kWarp == kMmaThreads && kN == kWarpsN * kWarpN);
};

// Byte offset of a chunk in an operand whose slices have kRows rows.
template <int kRows>
__device__ inline int chunk_at(int slice, int row, int chunk) {
  return ((slice * kRows + row) * kSliceChunks + (chunk ^ (row % 8) ^ slice)) * 16;
}

// Loads and decodes a thread's share of each step: 32 columns of one row of the weight.
template <class Decode, class X, int kTile>
class WeightLoader {
 public:
  __device__ WeightLoader(const Problem& p, const Matrix& matrix, int first_n)
      : units_(p.k / Decode::kColumns) {
    constexpr int kSlices = MmaShape<kTile>::kSlices;
    const int i = static_cast<int>(threadIdx.x);
    half_ = i % 2, slice_ = i / 2 % kSlices, row_ = i / (2 * kSlices);
    // Rows past the end repeat the last one; their results are not stored.
    constexpr int kScaleRows = std::is_same_v<Decode, DecodeFp8> ? kFp8BlockSize : 1;
    matrix_ = from_row(matrix, min(first_n + row_, p.n - 1), kScaleRows);
  }

  // Columns past the end become zeros.
  __device__ void load(int step) {
    const int column =
        (step * MmaShape<kTile>::kSlices + slice_) * kSliceColumns + half_ * kThreadColumns;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int unit = column / Decode::kColumns + u;
      loaded_[u] = unit < units_ ? Decode::load(matrix_, 0, unit) : typename Decode::Loaded{};
    }
  }

  __device__ void store(std::byte* operand, const float* table) const {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const auto codes = Decode::codes(loaded_[u], matrix_);
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        float w[8];
        Decode::piece(codes, piece, table, w);
        if constexpr (Decode::kScaled > 0)
          for (float& value : w) value *= Decode::scale(codes, piece);
        const int at = chunk_at<MmaShape<kTile>::kN>(slice_, row_, half_ * 4 + u * kPieces + piece);
        *reinterpret_cast<uint4*>(operand + at) = operand_quad<X>(w);
      }
    }
  }

 private:
  static constexpr int kUnits = kThreadColumns / Decode::kColumns, kPieces = Decode::kColumns / 8;

  Matrix matrix_;  // row 0 is this thread's row
  const int units_;
  int slice_, row_, half_;
  typename Decode::Loaded loaded_[kUnits];
};

// Copies a thread's share of x for each step: one chunk of each of four rows.
template <int kTile>
class ActivationLoader {
 public:
  __device__ ActivationLoader(const Problem& p, const Tile& tile)
      : x_(reinterpret_cast<const uint4*>(p.x)),
        chunks_(p.k / 8),
        chunk_(static_cast<int>(threadIdx.x) % kSliceChunks) {
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
      const int m = row(i) % kTile;
      rows_[i] = -1;
      if (m >= tile.rows) continue;
      const int64_t first = x_offset(p, x_row(p, tile.first_row + m), tile.projection, 0);
      rows_[i] = static_cast<int>(first / 8) + chunk_;
    }
  }

  __device__ void load(int step, std::byte* operand) const {
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
      const int slice = row(i) / kTile;
      const int chunk = (step * MmaShape<kTile>::kSlices + slice) * kSliceChunks;
      std::byte* to = operand + chunk_at<kTile>(slice, row(i) % kTile, chunk_);
      if (chunk + chunk_ < chunks_ && rows_[i] >= 0) {
        ptx::cp_async<16>(to, x_ + rows_[i] + chunk);
      } else {
        *reinterpret_cast<uint4*>(to) = uint4{};
      }
    }
  }

 private:
  static constexpr int kRowsEach = 128 * kSliceChunks / kMmaThreads;
  // Row i of this thread, counted over all slices of a step.
  static __device__ int row(int i) {
    return static_cast<int>(threadIdx.x) / kSliceChunks + i * (kMmaThreads / kSliceChunks);
  }

  const uint4* x_;
  const int chunks_, chunk_;  // chunks of a row; this thread's chunk of a slice
  int rows_[kRowsEach];       // position of this chunk in x, in chunks; -1: past the tile, zeros
};

template <int kTile>
using Sums = float[MmaShape<kTile>::kMmaM][MmaShape<kTile>::kMmaN][4];

// Where the warp's tile lies in the tile of the CTA.
template <int kTile>
struct WarpPlace {
  int slice, m, n;
  __device__ WarpPlace() {
    using Shape = MmaShape<kTile>;
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    slice = warp / (Shape::kWarpsM * Shape::kWarpsN);
    m = warp % Shape::kWarpsM * Shape::kWarpM;
    n = warp / Shape::kWarpsM % Shape::kWarpsN * Shape::kWarpN;
  }
};

template <class X, int kTile>
__device__ inline void multiply_step(const std::byte* x, const std::byte* w,
                                     const WarpPlace<kTile>& place, Sums<kTile>& sums) {
  using Shape = MmaShape<kTile>;
  const int lane = threadIdx.x % kWarp;
#pragma unroll 1  // NOTE: unrolled, loads are hoisted and the sums of 128 x 128 spill (2026-11-21)
  for (int k16 = 0; k16 < kSliceColumns / 16; ++k16) {
    uint32_t a[Shape::kMmaM][4];
#pragma unroll
    for (int m = 0; m < Shape::kMmaM; ++m) {
      const int row = place.m + m * 16 + lane % 16, chunk = k16 * 2 + lane / 16;
      ptx::ldmatrix_x4(a[m], x + chunk_at<kTile>(place.slice, row, chunk));
    }
#pragma unroll
    for (int n = 0; n < Shape::kMmaN; n += 2) {
      uint32_t b[4];
      const int row = place.n + n * 8 + lane / 16 * 8 + lane % 8;
      const int chunk = k16 * 2 + lane / 8 % 2;
      ptx::ldmatrix_x4(b, w + chunk_at<Shape::kN>(place.slice, row, chunk));
#pragma unroll
      for (int m = 0; m < Shape::kMmaM; ++m) {
        multiply_operands<X>(sums[m][n], a[m], b[0], b[1]);
        multiply_operands<X>(sums[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// Adds the slices in ascending order, in the warps of the first. shared: [warps][values][lane]
template <int kTile>
__device__ inline void add_slices(Sums<kTile>& sums, int slice, float* shared) {
  using Shape = MmaShape<kTile>;
  if constexpr (Shape::kSlices > 1) {
    constexpr int kValues = Shape::kMmaM * Shape::kMmaN * 4;
    constexpr int kSliceWarps = Shape::kWarpsM * Shape::kWarpsN;
    const int lane = threadIdx.x % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
    float* values = &sums[0][0][0];
    const auto at = [&](int of_warp, int i) { return (of_warp * kValues + i) * kWarp + lane; };
#pragma unroll
    for (int i = 0; i < kValues; ++i)
      if (slice > 0) shared[at(warp, i)] = values[i];
    __syncthreads();
    if (slice > 0) return;
    for (int s = 1; s < Shape::kSlices; ++s) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) values[i] += shared[at(s * kSliceWarps + warp, i)];
    }
  }
}

// The sums of a CTA's tile, of all slices in the warps of slice 0. Both operands of the next step
// arrive while the warps multiply this one. table: the codebook, which the CTA has begun to fill;
// operands: shared memory for x, w, x, w
template <class X, int kTile, class Weights>
__device__ inline void sum_tile(int k, Weights& weights, const ActivationLoader<kTile>& activations,
                                const float* table, uint4* operands, const WarpPlace<kTile>& place,
                                Sums<kTile>& sums) {
  auto* bytes = reinterpret_cast<std::byte*>(operands);
  const auto x = [&](int step) { return bytes + step % 2 * 2 * kOperandBytes; };
  const auto w = [&](int step) { return x(step) + kOperandBytes; };
  constexpr int kStepColumns = MmaShape<kTile>::kSlices * kSliceColumns;
  const int steps = (k + kStepColumns - 1) / kStepColumns;

  weights.load(0);
  activations.load(0, x(0));
  __syncthreads();  // the codebook is in shared memory
  weights.store(w(0), table);
  ptx::cp_async_wait_all();
  __syncthreads();
  for (int step = 0; step < steps; ++step) {
    const bool more = step + 1 < steps;
    if (more) {
      weights.load(step + 1);
      activations.load(step + 1, x(step + 1));
    }
    multiply_step<X, kTile>(x(step), w(step), place, sums);
    if (more) {
      weights.store(w(step + 1), table);
      ptx::cp_async_wait_all();
    }
    __syncthreads();  // all warps have read this step, and the next one is complete
  }
  add_slices<kTile>(sums, place.slice, reinterpret_cast<float*>(operands));
}

template <int kTile>
__device__ inline void store_sums(const Problem& p, const Tile& tile, int first_n, float scale2,
                                  const WarpPlace<kTile>& place, const Sums<kTile>& sums) {
  using Shape = MmaShape<kTile>;
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int m = 0; m < Shape::kMmaM; ++m) {
#pragma unroll
    for (int n = 0; n < Shape::kMmaN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = place.m + m * 16 + lane / 4 + i / 2 * 8;
        const int column = first_n + place.n + n * 8 + lane % 4 * 2 + i % 2;
        if (row < tile.rows && column < p.n)
          store_out(p, tile, row, column, sums[m][n][i] * scale2);
      }
    }
  }
}

// grid: tiles, then groups of kN rows of the weight, then projections
template <class Decode, class X, int kTile>
__global__ void __launch_bounds__(kMmaThreads, kTile == 32 ? 3 : 2)
    mma_kernel(const __grid_constant__ Problem p) {
  ptx::pdl_start();
  using Shape = MmaShape<kTile>;
  auto* const operands = reinterpret_cast<uint4*>(ptx::dynamic_smem());  // x, w, x, w
  __shared__ float table[Decode::kTable + 1];
  const Tile tile = this_tile(p);
  if (tile.rows == 0) return;
  const Matrix matrix = matrix_of(p, tile);
  for (int i = threadIdx.x; i < Decode::kTable; i += kMmaThreads) table[i] = matrix.codebook[i];
  const int first_n = static_cast<int>(blockIdx.y) * Shape::kN;
  WeightLoader<Decode, X, kTile> weights(p, matrix, first_n);
  const ActivationLoader<kTile> activations(p, tile);
  const WarpPlace<kTile> place;
  Sums<kTile> sums = {};
  sum_tile<X>(p.k, weights, activations, table, operands, place, sums);
  if (place.slice == 0) store_sums<kTile>(p, tile, first_n, matrix.scale2, place, sums);
}

template <class Decode, class X, int kTile>
void launch_mma(Device& device, const Problem& p) {
  constexpr int kN = MmaShape<kTile>::kN;
  launch(device, "quant_gemm_mma", mma_kernel<Decode, X, kTile>,
         {.grid = tile_slots(p),
          .block = kMmaThreads,
          .grid_y = (p.n + kN - 1) / kN,
          .grid_z = p.projections,
          .shared = 4 * kOperandBytes},
         p);
}

template <class Decode>
void mma(Device& device, const Problem& p) {
  with_operand<Decode>(p, [&]<class X>(OperandType<X>) {
    switch (p.tile_m) {
      case 32:
        return launch_mma<Decode, X, 32>(device, p);
      case 64:
        return launch_mma<Decode, X, 64>(device, p);
      default:
        return launch_mma<Decode, X, 128>(device, p);
    }
  });
}

}  // namespace dsv4::gemm::cuda
