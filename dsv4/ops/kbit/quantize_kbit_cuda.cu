// The implementation cuda of quantize_kbit.h, one launch; and largest_magnitude_on().

#include <algorithm>

#include "dsv4/base/bits.h"
#include "dsv4/device/launch.cuh"
#include "dsv4/ops/kbit/quantize_kbit_gpu.cuh"

namespace dsv4 {

using kbit_kernel::GpuQuantizer;

namespace {

GpuQuantizer values_of(const ConstTensorView& x) {
  GpuQuantizer q{};
  q.x = x.data, q.x_dtype = x.dtype, q.x_stride = x.row_stride();
  q.rows = x.dim(0), q.k = x.dim(1);
  return q;
}

GpuQuantizer quantizer_of(const QuantizeKbitArgs& args) {
  const kbit_kernel::Quantizer by(args.codebook, args.choice);
  GpuQuantizer q = values_of(args.x);
  q.blocks = ceil_div(q.k, int64_t{kKbitBlock});
  q.importance = args.importance.empty() ? nullptr : args.importance.as<float>();
  q.inverse_scale = 1 / args.tensor_scale;
  q.reference = args.choice == ScaleChoice::kReference;
  q.bits = args.codebook.bits;
  std::copy_n(args.codebook.value.begin(), args.codebook.size(), q.codebook);
  std::copy(by.level.begin(), by.level.end(), q.level);
  q.reach = by.reach, q.limit = by.limit, q.largest = args.codebook.largest(), q.unit = by.unit;
  q.magnitudes = by.magnitudes;
  q.planes = args.planes.as<uint32_t>(), q.plane_stride = args.planes.row_stride();
  q.scales = args.scales.as<uint8_t>(), q.scale_stride = args.scales.row_stride();
  q.first_bad = args.first_bad.empty() ? nullptr : args.first_bad.as<int32_t>();
  return q;
}

}  // namespace

namespace quantize_kbit_kernel::cuda {

void run(const Context& context, const QuantizeKbitArgs& args) {
  const GpuQuantizer q = quantizer_of(args);
  const int levels = q.magnitudes ? args.codebook.size() / 2 : args.codebook.size();
  const auto kernel = levels <= 2    ? kbit_kernel::quantize_kernel<2>
                      : levels == 4  ? kbit_kernel::quantize_kernel<4>
                      : levels == 8  ? kbit_kernel::quantize_kernel<8>
                      : levels == 16 ? kbit_kernel::quantize_kernel<16>
                                     : kbit_kernel::quantize_kernel<32>;
  launch(*context.device, "quantize_kbit", kernel,
         {.grid = ceil_div(q.rows * q.blocks, int64_t{kbit_kernel::kBlocksAtOnce}),
          .block = kbit_kernel::kBlocksAtOnce * kWarp,
          .pdl = true},
         q);
}

}  // namespace quantize_kbit_kernel::cuda

void largest_magnitude_on(Device& device, const ConstTensorView& x, int32_t* bits) {
  constexpr int kThreads = 256;
  if (!device.is_dry_run())
    cuda_check(cudaMemsetAsync(bits, 0, sizeof(int32_t), device.stream()), "largest_magnitude");
  launch(device, "largest_magnitude", kbit_kernel::largest_kernel,
         {.grid = std::min<int64_t>(ceil_div(x.numel(), int64_t{kThreads} * 8),
                                    device.info().num_sms * 8),
          .block = kThreads},
         values_of(x), bits);
}

}  // namespace dsv4
