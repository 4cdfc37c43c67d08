// The GEMV kernel for any format, shape and alignment: each warp computes one row of the weight,
// element by element. No dimension of a released model needs it.

#include "dsv4/device/launch.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/formats/e2m1.h"
#include "dsv4/ops/gemm/cuda/kernels.h"
#include "dsv4/ops/gemm/cuda/tile.cuh"

namespace dsv4::gemm::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kMaxTile = 8;

struct Stored {
  WeightFormat format;
  int bits;
};

// One weight, without scale2.
__device__ float weight_at(const Stored& stored, const Matrix& w, int row, int column) {
  const std::byte* data = w.data + row * w.row_bytes;
  const std::byte* scale = w.scale + row * w.scale_row_bytes;
  const auto e2m1 = [&] {
    return e2m1_to_f32(e2m1_code(load_as<uint8_t>(data + column / 2), column & 1));
  };
  switch (stored.format) {
    case WeightFormat::kF32:
      return load_as<float>(data + column * 4);
    case WeightFormat::kBF16:
      return bf16_to_f32(load_as<uint16_t>(data + column * 2));
    case WeightFormat::kF16:
      return f16_to_f32(load_as<uint16_t>(data + column * 2));
    case WeightFormat::kFp8Block: {
      scale = w.scale + row / kFp8BlockSize * w.scale_row_bytes;
      const int block = column / kFp8BlockSize;
      return e4m3_to_f32(load_as<uint8_t>(data + column)) *
             (w.scale_is_f32 ? load_as<float>(scale + block * 4)
                             : ue8m0_to_f32(load_as<uint8_t>(scale + block)));
    }
    case WeightFormat::kMxfp4:
      return e2m1() * ue8m0_to_f32(load_as<uint8_t>(scale + column / kMxfp4Group));
    case WeightFormat::kNvfp4:
      return e2m1() * e4m3_to_f32(load_as<uint8_t>(scale + column / kNvfp4Group));
    case WeightFormat::kKbit: {
      const int block = column / kKbitBlock, bits = stored.bits;
      const auto* planes = reinterpret_cast<const uint32_t*>(data) + block * bits;
      return w.codebook[kbit_code(planes, bits, column % kKbitBlock)] *
             e4m4_to_f32(load_as<uint8_t>(scale + block));
    }
  }
  return 0;
}

// grid: tiles, then groups of kWarps rows of the weight, then projections
__global__ void __launch_bounds__(kThreads) any_kernel(const __grid_constant__ Problem p) {
  ptx::pdl_start();
  const Tile tile = this_tile(p);
  const int row = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (tile.rows == 0 || row >= p.n) return;
  const int lane = threadIdx.x % kWarp;
  const Matrix matrix = matrix_of(p, tile);
  const Stored stored{p.weight[0].format, p.weight[0].bits};
  float acc[kMaxTile] = {};
  for (int column = lane; column < p.k; column += kWarp) {
    const float w = weight_at(stored, matrix, row, column);
#pragma unroll
    for (int t = 0; t < kMaxTile; ++t) {
      if (t >= tile.rows) break;
      acc[t] = fmaf(load_x(p, x_row(p, tile.first_row + t), tile.projection, column), w, acc[t]);
    }
  }
#pragma unroll
  for (int t = 0; t < kMaxTile; ++t) {
    if (t >= tile.rows) break;
    const float sum = warp_sum(acc[t]);
    if (lane == 0) store_out(p, tile, t, row, sum * matrix.scale2);
  }
}

}  // namespace

void gemv_any(Device& device, const Problem& p) {
  launch(device, "quant_gemv_any", any_kernel,
         {.grid = tile_slots(p),
          .block = kThreads,
          .grid_y = (p.n + kWarps - 1) / kWarps,
          .grid_z = p.projections},
         p);
}

}  // namespace dsv4::gemm::cuda
