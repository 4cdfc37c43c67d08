// Tensor core kernels of BF16, FP8, MXFP4 and NVFP4 weights, and the E4M3 activations for all.

#include "dsv4/ops/linear/product_mma.h"

#include "dsv4/ops/linear/product_mma.cuh"

namespace dsv4 {
namespace product {

void mma_plain(Device& device, const Product& p) {
  switch (p.weight[0].format) {
    case WeightFormat::kBF16:
      return launch_mma_decoder<DecodeBF16>(device, p);
    case WeightFormat::kFp8Block:
      return launch_mma_decoder<DecodeFp8>(device, p);
    case WeightFormat::kMxfp4:
      return launch_mma_decoder<DecodeMxfp4>(device, p);
    default:
      return launch_mma_decoder<DecodeNvfp4>(device, p);
  }
}

namespace {

constexpr int kThreads = 256;

// grid: x rows, y blocks of 8 kThreads columns of a part, z parts
__global__ void widen_kernel(const __grid_constant__ Product p, bf16* out) {
  const int column = (static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x)) * 8;
  if (column >= p.k) return;
  const int64_t row = blockIdx.x;
  const int part = static_cast<int>(blockIdx.z);
  float v[8];
  load_x8(p, row, part, column, v);
  bf16* to = out + (row * p.parts + part) * p.k + column;
  for (int i = 0; i < 8; ++i) to[i] = __float2bfloat16_rn(v[i]);
}

}  // namespace
}  // namespace product

void widen_activations(Device& device, Product& p) {
  const TensorView x = device.workspace().take(DType::kBF16, {p.num_pairs, int64_t{p.parts} * p.k});
  launch(device, "widen_activations", product::widen_kernel,
         {.grid = p.num_pairs,
          .block = product::kThreads,
          .grid_y = (p.k + 8 * product::kThreads - 1) / (8 * product::kThreads),
          .grid_z = p.parts},
         p, x.as<bf16>());
  p.x = x.data;
  p.x_dtype = DType::kBF16;
  p.x_stride = x.row_stride();
  p.x_part = p.k;
}

}  // namespace dsv4
