// The implementation cuda of quantize_fp4.h, one launch.

#include "dsv4/base/bits.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/ops/kbit/quantize_fp4.cuh"
#include "dsv4/ops/kbit/quantize_fp4.h"

namespace dsv4::quantize_fp4_kernel::cuda {

void run(const Context& context, const QuantizeFp4Args& args) {
  const bool mx = args.format == WeightFormat::kMxfp4;
  const Fp4Quantizer q{
      .x = args.x.as<float>(),
      .x_stride = args.x.row_stride(),
      .rows = args.x.dim(0),
      .groups = args.scales.dim(1),
      .group = mx ? kMxfp4Group : kNvfp4Group,
      .importance = args.importance.empty() ? nullptr : args.importance.as<float>(),
      .mx = mx,
      .searched = args.searched,
      .scale2 = args.scale2,
      .pairs = args.pairs.as<uint8_t>(),
      .pair_stride = args.pairs.row_stride(),
      .scales = reinterpret_cast<uint8_t*>(args.scales.data),
      .scale_stride = args.scales.row_stride(),
      .first_bad = args.first_bad.empty() ? nullptr : args.first_bad.as<int32_t>()};
  launch(*context.device, "quantize_fp4", quantize_fp4_kernel,
         {.grid = ceil_div(q.rows * q.groups, int64_t{kThreads}), .block = kThreads, .pdl = true},
         q);
}

}  // namespace dsv4::quantize_fp4_kernel::cuda
