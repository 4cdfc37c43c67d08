// The products of images, each kind in one of the files that instance.cu becomes: a kernel with
// both products of the experts. Where gate and up are another kind than down, the kernel of each
// kind computes its own.

#pragma once

#include "dsv4/device/device.h"
#include "dsv4/ops/gemm/sm90/grouped/config.cuh"

namespace dsv4::experts_kernel::sm90_grouped {

namespace grouped = gemm::grouped;
using enum ImageScale;

// How weights become operands.
//   kTwoBytes, kOneByte   times their scales, in 16 bits (weights/kbit_image_scaled.cuh): what a
//                         permute finds of a codebook value
//   kFolded               times their scales, in e4m3 (weights/kbit_image_folded.cuh)
//   kBlocks               without their scales, in e4m3 (weights/kbit_image_blocks.cuh)
enum class Decoder : uint8_t { kTwoBytes, kOneByte, kFolded, kBlocks };
using enum Decoder;

// Launches the products that the parameters name, both or one, on all SMs: the kernel needs its
// CTAs to run together.
//
// K, kScale: of the image.
//
// Only launch.cu names all of them. A table of them here would compile every kernel in every file
// that has the definition.
template <int K, ImageScale kScale, Decoder kDecoder>
void launch_products(Device& device, const grouped::Params& p);

}  // namespace dsv4::experts_kernel::sm90_grouped
