// One kernel for each kind of image, for k-bit codebooks on the e4m3 grid, and for MXFP4 in e4m3.
// Instances: 2, kE4M4, kTwoBytes | 3, kE4M4, kTwoBytes | 4, kE4M4, kTwoBytes | 5, kE4M4, kTwoBytes
// Instances: 4, kUe8m0, kTwoBytes | 4, kE4M3, kTwoBytes
// Instances: 2, kE4M4, kE4m3 | 3, kE4M4, kE4m3 | 4, kE4M4, kE4m3 | 4, kUe8m0, kE4m3

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/gemm/sm90/grouped/kernel.cuh"
#include "dsv4/ops/gemm/weights/kbit_image_folded.cuh"
#include "dsv4/ops/gemm/weights/kbit_image_scaled.cuh"
#include "dsv4/ops/parts/experts/sm90_grouped/launch.cuh"

namespace dsv4::experts_kernel::sm90_grouped {

template <int K, ImageScale kScale, gemm::ScaledTable kTable>
void launch_products(Device& device, const grouped::Params& p) {
  constexpr bool kFolded = kScale == kUe8m0 && kTable == kE4m3;
  using Weights =
      std::conditional_t<kFolded, gemm::KbitImageFolded, gemm::KbitImageScaled<K, kScale, kTable>>;
  launch(device, "experts_products", grouped::grouped_kernel<Weights>,
         {.grid = device.info().num_sms,
          .block = grouped::kThreads,
          .shared = sizeof(grouped::Shared<Weights>)},
         p);
}

template void launch_products<DSV4_INSTANCE>(Device& device, const grouped::Params& p);

}  // namespace dsv4::experts_kernel::sm90_grouped
