// The products of images, each kind in one of the files that instance.cu becomes: a kernel with
// both products of the experts. Where gate and up are another kind than down, the kernel of each
// kind computes its own.

#pragma once

#include "dsv4/device/device.h"
#include "dsv4/ops/gemm/sm90/grouped/config.cuh"

namespace dsv4::experts_kernel::sm90_grouped {

namespace grouped = gemm::grouped;

// Launches the products that the parameters name, both or one, on all SMs: the kernel needs its
// CTAs to run together.
template <int K, ImageScale kScale>
void launch_products(Device& device, const grouped::Params& p);

// By KbitImage::kind().
inline constexpr void (*kProducts[])(Device& device, const grouped::Params& p) = {
    launch_products<2, ImageScale::kE4M4>,  launch_products<3, ImageScale::kE4M4>,
    launch_products<4, ImageScale::kE4M4>,  launch_products<5, ImageScale::kE4M4>,
    launch_products<4, ImageScale::kUe8m0>, launch_products<4, ImageScale::kE4M3>};
static_assert(std::size(kProducts) == KbitImage::kKinds);

}  // namespace dsv4::experts_kernel::sm90_grouped
