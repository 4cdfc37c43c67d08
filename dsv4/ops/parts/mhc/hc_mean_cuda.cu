// hc_mean of mhc.h: one launch of the kernel in hc_mean.cuh.

#include "dsv4/base/bits.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/ops/parts/mhc/hc_mean.cuh"
#include "dsv4/ops/parts/mhc/mhc.h"

namespace dsv4::mhc_kernel::cuda {
namespace {

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
