// hc_post of mhc.h, one launch: each thread updates a run of columns of all streams.

#include "dsv4/base/bits.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/device/pack.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/parts/mhc/mhc.h"

namespace dsv4::mhc_kernel::cuda {
namespace {

constexpr int kFewStreams = 4;  // the released models' number: half the registers
constexpr int kPostThreads = 128;
constexpr int kRun = 4;  // columns per thread when rows are aligned to them

// y is rounded to the streams' dtype first.
template <class T>
__device__ float rounded(float x) {
  return to_float(from_float<T>(x));
}

struct PostWeights {
  const float *post, *comb;  // [t, m], [t, m, m]
  int64_t post_stride, comb_stride, comb_row_stride;
};

// kMax: maximum number of streams. grid: [t, d / (threads *
// run)]
template <int kMax, int kWide, class Y, class T>
__global__ void hc_post_kernel(const Y* y, int64_t y_stride, PostWeights weights, T* streams,
                               int64_t token_stride, int64_t stream_stride, int m, int d) {
  ptx::pdl_start();
  __shared__ float post[kMax], comb[kMax][kMax];
  const int64_t token = blockIdx.x;
  for (int i = threadIdx.x; i < kMax * kMax; i += kPostThreads) {
    const int j = i / kMax, k = i % kMax;
    const bool inside = j < m && k < m;
    comb[j][k] =
        inside ? weights.comb[token * weights.comb_stride + j * weights.comb_row_stride + k] : 0.f;
    if (j == 0) post[k] = inside ? weights.post[token * weights.post_stride + k] : 0.f;
  }
  __syncthreads();
  const int column =
      (static_cast<int>(blockIdx.y) * kPostThreads + static_cast<int>(threadIdx.x)) * kWide;
  if (column >= d) return;
  streams += token * token_stride + column;
  float own[kWide], x[kMax][kWide];
  load<kWide>(y + token * y_stride + column, own);
#pragma unroll
  for (int j = 0; j < kMax; ++j) {
    if (j < m) load<kWide>(streams + j * stream_stride, x[j]);
  }
#pragma unroll
  for (int k = 0; k < kMax; ++k) {
    if (k >= m) continue;
    float sum[kWide];
#pragma unroll
    for (int i = 0; i < kWide; ++i) {
      sum[i] = post[k] * rounded<T>(own[i]);
#pragma unroll
      for (int j = 0; j < kMax; ++j) {
        if (j < m) sum[i] = __fmaf_rn(comb[j][k], x[j][i], sum[i]);
      }
    }
    store<kWide>(streams + k * stream_stride, sum);
  }
}

template <int kMax, int kWide>
void hc_post_of(Device& device, const HcPostArgs& args) {
  const TensorView& x = args.streams;
  const PostWeights weights{args.post.as<float>(), args.comb.as<float>(), args.post.row_stride(),
                            args.comb.stride[0], args.comb.stride[1]};
  with_float_type(args.y.dtype, [&](auto y) {
    with_float_type(x.dtype, [&](auto element) {
      using Y = decltype(y);
      using T = decltype(element);
      launch(device, "hc_post", hc_post_kernel<kMax, kWide, Y, T>,
             {.grid = x.dim(0),
              .block = kPostThreads,
              .grid_y = ceil_div(x.dim(2), kPostThreads * kWide),
              .pdl = true},
             args.y.as<Y>(), args.y.row_stride(), weights, x.as<T>(), x.stride[0], x.stride[1],
             x.dim(1), x.dim(2));
    });
  });
}

}  // namespace

void run(const Context& context, const HcPostArgs& args) {
  const bool wide = packs(args.streams, kRun) && packs(args.y, kRun);
  const bool few = args.streams.dim(1) <= kFewStreams;
  const auto run = wide ? (few ? hc_post_of<kFewStreams, kRun> : hc_post_of<kMaxStreams, kRun>)
                        : (few ? hc_post_of<kFewStreams, 1> : hc_post_of<kMaxStreams, 1>);
  run(*context.device, args);
}

}  // namespace dsv4::mhc_kernel::cuda
