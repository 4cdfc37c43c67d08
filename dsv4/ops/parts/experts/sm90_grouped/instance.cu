// One kernel for each kind of image, for k-bit codebooks on the e4m3 grid, for MXFP4 in e4m3, and
// for images with blocks of 32 whose codebook is on the e4m3 grid, scaled block by block.
// Instances: 2, kE4M4, kTwoBytes | 3, kE4M4, kTwoBytes | 4, kE4M4, kTwoBytes | 5, kE4M4, kTwoBytes
// Instances: 4, kUe8m0, kTwoBytes | 4, kE4M3, kTwoBytes
// Instances: 2, kE4M4, kOneByte | 3, kE4M4, kOneByte | 4, kE4M4, kOneByte | 4, kUe8m0, kFolded
// Instances: 2, kE4M4, kBlocks | 3, kE4M4, kBlocks | 4, kE4M4, kBlocks | 4, kUe8m0, kBlocks

#include <type_traits>

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/gemm/sm90/grouped/kernel.cuh"
#include "dsv4/ops/gemm/weights/kbit_image_blocks.cuh"
#include "dsv4/ops/gemm/weights/kbit_image_folded.cuh"
#include "dsv4/ops/gemm/weights/kbit_image_scaled.cuh"
#include "dsv4/ops/parts/experts/sm90_grouped/launch.cuh"

namespace dsv4::experts_kernel::sm90_grouped {

template <int K, ImageScale kScale, Decoder kDecoder>
auto weights_of() {
  using gemm::KbitImageScaled, gemm::ScaledTable;
  if constexpr (kDecoder == kTwoBytes)
    return std::type_identity<KbitImageScaled<K, kScale, ScaledTable::kTwoBytes>>();
  else if constexpr (kDecoder == kOneByte)
    return std::type_identity<KbitImageScaled<K, kScale, ScaledTable::kE4m3>>();
  else if constexpr (kDecoder == kFolded)
    return std::type_identity<gemm::KbitImageFolded>();
  else
    return std::type_identity<gemm::KbitImageBlocks<K, kScale>>();
}

template <int K, ImageScale kScale, Decoder kDecoder>
void launch_products(Device& device, const grouped::Params& p) {
  using Weights = typename decltype(weights_of<K, kScale, kDecoder>())::type;
  launch(device, "experts_products", grouped::grouped_kernel<Weights>,
         {.grid = device.info().num_sms,
          .block = grouped::kThreads,
          .shared = sizeof(grouped::Shared<Weights>)},
         p);
}

template void launch_products<DSV4_INSTANCE>(Device& device, const grouped::Params& p);

}  // namespace dsv4::experts_kernel::sm90_grouped
