// Each CTA rotates some heads of one token and computes the token's angles once, into shared
// memory.

#include "dsv4/base/bits.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/device/pack.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/parts/rope/rope.h"
#include "dsv4/ops/parts/rope/rotation.cuh"

namespace dsv4::rope_kernel::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kHeads = 16;  // per CTA: few enough that one token of 64 heads uses several CTAs

// x points at the first rotated dim. kRun: 2 when pairs are aligned. grid: [t, h / kHeads]
template <int kRun, class T>
__global__ void rope_kernel(T* x, int64_t token_stride, int64_t head_stride, int heads,
                            const int32_t* positions, const float* freqs, int num_pairs,
                            bool inverse) {
  ptx::pdl_start();
  extern __shared__ float2 rotation[];  // [num_pairs] cos, sin
  const auto position = static_cast<float>(positions[blockIdx.x]);
  for (int i = threadIdx.x; i < num_pairs; i += kThreads)
    rotation[i] = rotation_of(position, freqs[i], inverse);
  __syncthreads();
  const int first = static_cast<int>(blockIdx.y) * kHeads;
  const int count = min(kHeads, heads - first) * num_pairs;
  x += blockIdx.x * token_stride + first * head_stride;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const int head = i / num_pairs, pair = i % num_pairs;
    T* at = x + head * head_stride + 2 * pair;
    float v[2];
    for (int j = 0; j < 2; j += kRun) load<kRun>(at + j, v + j);
    const float2 turned = rotate({v[0], v[1]}, rotation[pair]);
    const float out[2] = {turned.x, turned.y};
    for (int j = 0; j < 2; j += kRun) store<kRun>(at + j, out + j);
  }
}

}  // namespace

void run(const Context& context, const RopeArgs& args) {
  const int64_t heads = args.x.dim(1), d = args.x.dim(2), num_pairs = args.freqs.dim(0);
  const TensorView rotated = args.x.slice(2, d - 2 * num_pairs, d);
  if (rotated.numel() == 0) return;
  with_float_type(args.x.dtype, [&](auto element) {
    using T = decltype(element);
    launch(*context.device, "rope", packs(rotated, 2) ? rope_kernel<2, T> : rope_kernel<1, T>,
           {.grid = args.x.dim(0),
            .block = kThreads,
            .grid_y = ceil_div(heads, kHeads),
            .shared = num_pairs * static_cast<int64_t>(sizeof(float2)),
            .pdl = true},
           rotated.as<T>(), rotated.stride[0], rotated.stride[1], heads,
           args.positions.as<int32_t>(), args.freqs.as<float>(), num_pairs, args.inverse);
  });
}

}  // namespace dsv4::rope_kernel::cuda
