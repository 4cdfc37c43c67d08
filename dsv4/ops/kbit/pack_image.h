// Packs k-bit and FP4 weights into their kernel image (formats/kbit_image.h) on the GPU: the bytes
// of pack_kbit_strip(), all strips in one launch.

#pragma once

#include <cuda_runtime.h>

#include <span>

#include "dsv4/formats/kbit_image.h"

namespace dsv4 {

// A weight as the file has it (formats/weight.h), without gaps, in device memory. Of FP4 the 16
// bytes of 32 columns are read as words, too.
struct FlatKbit {
  const uint32_t* planes;  // [n, k/32 * K]
  const uint8_t* scale;    // [n, k/32], NVFP4: [n, k/16]
};

// weights: one, or gate and up. bytes: [image.bytes()], 4-byte aligned. Enqueues on `stream`.
void pack_kbit_image(cudaStream_t stream, const KbitImage& image, std::span<const FlatKbit> weights,
                     std::byte* bytes);

}  // namespace dsv4
