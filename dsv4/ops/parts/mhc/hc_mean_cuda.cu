// hc_mean of mhc.h, one launch: each thread adds a run of columns of all streams, in their order,
// and divides once.

#include "dsv4/base/bits.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/device/pack.cuh"
#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/parts/mhc/mhc.h"

namespace dsv4::mhc_kernel::cuda {
namespace {

constexpr int kMeanThreads = 128;
constexpr int kMeanRun = 4;  // columns per thread when rows are aligned to them

// grid: [t, d / (threads * run)]
template <int kWide, class In, class Out>
__global__ void hc_mean_kernel(const In* streams, int64_t token_stride, int64_t stream_stride,
                               int m, int d, Out* out, int64_t out_stride) {
  ptx::pdl_start();
  const int64_t token = blockIdx.x;
  const int column =
      (static_cast<int>(blockIdx.y) * kMeanThreads + static_cast<int>(threadIdx.x)) * kWide;
  if (column >= d) return;
  streams += token * token_stride + column;
  float sum[kWide] = {};
  for (int j = 0; j < m; ++j) {
    float x[kWide];
    load<kWide>(streams + j * stream_stride, x);
#pragma unroll
    for (int i = 0; i < kWide; ++i) sum[i] += x[i];
  }
#pragma unroll
  for (int i = 0; i < kWide; ++i) sum[i] = __fdiv_rn(sum[i], static_cast<float>(m));
  store<kWide>(out + token * out_stride + column, sum);
}

template <int kWide>
void hc_mean_of(Device& device, const HcMeanArgs& args) {
  const ConstTensorView& x = args.streams;
  with_float_type(x.dtype, [&](auto in) {
    with_float_type(args.out.dtype, [&](auto out) {
      using In = decltype(in);
      using Out = decltype(out);
      launch(device, "hc_mean", hc_mean_kernel<kWide, In, Out>,
             {.grid = x.dim(0),
              .block = kMeanThreads,
              .grid_y = ceil_div(x.dim(2), kMeanThreads * kWide),
              .pdl = true},
             x.as<In>(), x.stride[0], x.stride[1], x.dim(1), x.dim(2), args.out.as<Out>(),
             args.out.row_stride());
    });
  });
}

}  // namespace

void run(const Context& context, const HcMeanArgs& args) {
  const bool wide = packs(args.streams, kMeanRun) && packs(args.out, kMeanRun);
  wide ? hc_mean_of<kMeanRun>(*context.device, args) : hc_mean_of<1>(*context.device, args);
}

}  // namespace dsv4::mhc_kernel::cuda
