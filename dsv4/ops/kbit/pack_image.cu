// pack_kbit_image() of pack_image.h: one launch of the kernel in pack_image.cuh, in which a warp
// makes a unit of the image. find_exponents(): one launch of the kernel in image_exponents.cuh.

#include "dsv4/ops/kbit/pack_image.cuh"

#include "dsv4/device/error.h"
#include "dsv4/ops/kbit/image_exponents.cuh"

namespace dsv4 {

using namespace kbit_packing;

void pack_kbit_image(cudaStream_t stream, const KbitImage& image, std::span<const FlatKbit> weights,
                     std::byte* bytes) {
  const Source source{weights.front(), weights.back(), static_cast<int>(weights.size())};
  constexpr decltype(&pack_kernel<2>) kKernels[KbitImage::kKinds] = {
      pack_kernel<2>,
      pack_kernel<3>,
      pack_kernel<4>,
      pack_kernel<5>,
      pack_kernel<4, ImageScale::kUe8m0>,
      pack_kernel<4, ImageScale::kE4M3>};
  const auto kernel = kKernels[image.kind()];
  const int64_t units = image.num_strips() * image.units_along_k();
  if (units == 0) return;
  kernel<<<static_cast<unsigned>(ceil_div(units, kWarps)), kWarps * kWarp, 0, stream>>>(
      image, source, bytes);
  cuda_check(cudaGetLastError(), "pack_kbit_image");
}

void find_exponents(cudaStream_t stream, const KbitImage& image, bool gate_and_up,
                    const std::byte* images, int64_t experts, ExponentRange* ranges) {
  const int64_t units = image.num_strips() * image.units_along_k();
  if (units == 0 || experts == 0) return;
  const dim3 grid(static_cast<unsigned>(ceil_div(units, kRangeWarps)),
                  static_cast<unsigned>(experts));
  exponents_kernel<<<grid, kRangeWarps * kWarp, 0, stream>>>(image, gate_and_up, images, ranges);
  cuda_check(cudaGetLastError(), "find_exponents");
}

}  // namespace dsv4
