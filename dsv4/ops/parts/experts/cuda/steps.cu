#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/parts/experts/cuda/steps.h"

#include <cmath>

#include "dsv4/device/launch.cuh"
#include "dsv4/device/math.cuh"
#include "dsv4/formats/quant_group.h"
#include "dsv4/ops/gemm/epilogue/swiglu.cuh"

namespace dsv4 {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kGroup = 128, kLaneColumns = kGroup / kWarp;

// Quantizes a group of 128 in one warp: lane l holds columns l, l + 32, ...; columns past the end
// are 0. NaN does not affect the scale (formats/quant_group.h).
__device__ void quantize_group(float (&v)[kLaneColumns]) {
  float largest = 0;
  for (const float x : v) largest = fmaxf(largest, fabsf(x));  // fmaxf drops NaN
  const uint8_t scale = q8_scale(warp_max(largest));
  const float inverse = inverse_scale(scale), factor = ue8m0_to_f32(scale);
  for (float& x : v) x = e4m3_to_f32(f32_to_e4m3(x * inverse)) * factor;
}

// Each warp processes one group of a row: the grid has rows along x and kWarps groups per CTA along
// y.
struct Group {
  int64_t row;
  int first;  // column of lane 0
};
__device__ Group this_group() {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  return {blockIdx.x, (static_cast<int>(blockIdx.y) * kWarps + warp) * kGroup + lane};
}
int64_t group_blocks(int64_t columns) {
  return ceil_div(ceil_div(columns, kGroup), kWarps);
}

template <class X>
__global__ void quantize_kernel(const X* x, int64_t x_stride, bf16* out, int d) {
  ptx::pdl_start();
  const auto [row, first] = this_group();
  float v[kLaneColumns] = {};
  for (int i = 0; i < kLaneColumns; ++i)
    if (first + i * kWarp < d) v[i] = to_float(x[row * x_stride + first + i * kWarp]);
  quantize_group(v);
  for (int i = 0; i < kLaneColumns; ++i)
    if (first + i * kWarp < d) out[row * d + first + i * kWarp] = from_float<bf16>(v[i]);
}

template <class X>
__global__ void swiglu_kernel(const X* gate_up, const float* weight, X* hidden, int inner,
                              float limit, bool quantize) {
  ptx::pdl_start();
  const auto [pair, first] = this_group();
  const X *gate = gate_up + pair * 2 * inner, *up = gate + inner;
  const float factor = weight == nullptr ? 1.f : weight[pair];
  float v[kLaneColumns] = {};
  for (int i = 0; i < kLaneColumns; ++i) {
    const int c = first + i * kWarp;
    if (c < inner)  // rounded to the dtype of hidden
      v[i] = to_float(from_float<X>(swiglu(to_float(gate[c]), to_float(up[c]), factor, limit)));
  }
  if (quantize) quantize_group(v);
  for (int i = 0; i < kLaneColumns; ++i) {
    const int c = first + i * kWarp;
    if (c < inner) hidden[pair * inner + c] = from_float<X>(v[i]);
  }
}

// Each CTA combines kThreads columns of one token. pairs: the token's pairs, sorted
template <class Y, class Addend>
__global__ void combine_kernel(const Y* y, int64_t y_stride, const int32_t* pair_of, int slots,
                               bool add, const Addend* addend, int64_t addend_stride, float* acc,
                               int64_t acc_stride, int d) {
  ptx::pdl_start();
  extern __shared__ int32_t pairs[];
  const int64_t t = blockIdx.x;
  for (int i = threadIdx.x; i < slots; i += kThreads) {
    const int pair = pair_of == nullptr ? static_cast<int>(t) : pair_of[t * slots + i];
    int rank = 0;  // pairs are distinct numbers
    for (int j = 0; j < slots && pair_of != nullptr; ++j) rank += pair_of[t * slots + j] < pair;
    pairs[rank] = pair;
  }
  __syncthreads();
  const int c = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  if (c >= d) return;
  float sum = add ? acc[t * acc_stride + c] : 0.f;
  for (int i = 0; i < slots; ++i) sum += to_float(y[pairs[i] * y_stride + c]);
  if (addend != nullptr) sum += to_float(addend[t * addend_stride + c]);
  acc[t * acc_stride + c] = sum;
}

}  // namespace

void experts_quantize(Device& device, const ConstTensorView& x, const TensorView& out) {
  with_float_type(x.dtype, [&](auto element) {
    using X = decltype(element);
    launch(device, "experts_quantize", quantize_kernel<X>,
           {.grid = x.dim(0), .block = kThreads, .grid_y = group_blocks(x.dim(1)), .pdl = true},
           x.as<X>(), x.row_stride(), out.as<bf16>(), x.dim(1));
  });
}

void experts_swiglu(Device& device, const SwigluStep& step) {
  const int64_t inner = step.hidden.dim(1);
  with_float_type(step.hidden.dtype, [&](auto element) {
    using X = decltype(element);
    launch(
        device, "experts_swiglu", swiglu_kernel<X>,
        {.grid = step.hidden.dim(0), .block = kThreads, .grid_y = group_blocks(inner), .pdl = true},
        step.gate_up.as<X>(), step.weight, step.hidden.as<X>(), inner,
        step.limit > 0 ? step.limit : HUGE_VALF, step.quantize);
  });
}

void experts_combine(Device& device, const CombineStep& step) {
  const int64_t d = step.acc.dim(1);
  const bool more = !step.addend.empty();
  with_float_type(step.y.dtype, [&](auto element) {
    using Y = decltype(element);
    with_float_type(more ? step.addend.dtype : step.y.dtype, [&](auto addend_element) {
      using Addend = decltype(addend_element);
      launch(device, "experts_combine", combine_kernel<Y, Addend>,
             {.grid = step.acc.dim(0),
              .block = kThreads,
              .grid_y = ceil_div(d, kThreads),
              .shared = step.slots * static_cast<int64_t>(sizeof(int32_t)),
              .pdl = true},
             step.y.as<Y>(), step.y.row_stride(), step.pair_of, step.slots, step.add,
             more ? step.addend.as<Addend>() : nullptr, more ? step.addend.row_stride() : 0,
             step.acc.as<float>(), step.acc.row_stride(), d);
    });
  });
}

}  // namespace dsv4
