// A bf16 copy of E4M3 activations, which the tensor core kernels with tiles of more than 16 rows
// read.

#include "dsv4/device/launch.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/gemm/cuda/tile.cuh"

namespace dsv4::gemm::cuda {
namespace {

constexpr int kWidenThreads = 256;

// grid: rows of x, then groups of 8 * kWidenThreads columns, then projections
__global__ void widen_kernel(const __grid_constant__ Problem p, bf16* out) {
  ptx::pdl_start();
  const int column =
      (static_cast<int>(blockIdx.y) * kWidenThreads + static_cast<int>(threadIdx.x)) * 8;
  if (column >= p.k) return;
  const int64_t row = blockIdx.x;
  const int projection = static_cast<int>(blockIdx.z);
  float v[8];
  load_x8(p, row, projection, column, v);
  bf16* to = out + (row * p.projections + projection) * p.k + column;
  for (int i = 0; i < 8; ++i) to[i] = __float2bfloat16_rn(v[i]);
}

}  // namespace

void widen_activations(Device& device, Problem& p) {
  const TensorView x = device.workspace().take(DType::kBF16, {p.m, int64_t{p.projections} * p.k});
  launch(device, "widen_activations", widen_kernel,
         {.grid = p.m,
          .block = kWidenThreads,
          .grid_y = (p.k + 8 * kWidenThreads - 1) / (8 * kWidenThreads),
          .grid_z = p.projections,
          .pdl = true},
         p, x.as<bf16>());
  p.x = x.data;
  p.x_dtype = DType::kBF16;
  p.x_stride = x.row_stride();
  p.x_projection_stride = p.k;
}

}  // namespace dsv4::gemm::cuda
