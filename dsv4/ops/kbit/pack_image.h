// Packs k-bit and FP4 weights into their kernel image (formats/kbit_image.h) on the GPU: the bytes
// of pack_kbit_strip(), all strips in one launch. And the range of the block exponents of MXFP4
// images: whether e4m3 operands hold their weights (gemm/weights/kbit_image_folded.cuh).

#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

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

// The range over the blocks of a weight that have a value other than zero. Zeros: there is none.
struct ExponentRange {
  int32_t largest = 0;    // exponent byte
  int32_t below_256 = 0;  // 256 less the smallest exponent byte

  int span() const { return std::max(largest + below_256 - 256, 0); }
};

// images:  [e, image.bytes()] MXFP4, in device memory
// ranges:  [e, 2] of gate and up, whose groups of eight rows alternate, or [e, 1]; in device
//          memory, zeros before
// Enqueues on `stream`.
void find_exponents(cudaStream_t stream, const KbitImage& image, bool gate_and_up,
                    const std::byte* images, int64_t experts, ExponentRange* ranges);

// What exponents are folded against: [e, 3], the largest of w1, w3 and w2. Empty where a weight has
// a block more than kFoldedSpan below it, or of NaN. gate_up: [e, 2]; down: [e]
inline std::vector<int32_t> folded_exponents(std::span<const ExponentRange> gate_up,
                                             std::span<const ExponentRange> down) {
  constexpr int32_t kNan = 255;  // an exponent byte
  std::vector<int32_t> largest;
  for (size_t e = 0; e < down.size(); ++e) {
    for (const ExponentRange& range : {gate_up[2 * e], gate_up[2 * e + 1], down[e]}) {
      if (range.span() > kFoldedSpan || range.largest == kNan) return {};
      largest.push_back(range.largest);
    }
  }
  return largest;
}

}  // namespace dsv4
