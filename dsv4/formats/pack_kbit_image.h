// Kernel images (kbit_image.h) of weights as they are stored, and back, on the host: what the GPU
// does at load (ops/kbit/pack_image.h), strip by strip, for tests and as its definition.

#pragma once

#include <span>

#include "dsv4/formats/kbit_image.h"
#include "dsv4/formats/weight.h"

namespace dsv4 {

// The image of one weight, or of gate and up interleaved (equal shape, format, bits and codebook;
// checked). Codebook and scale2 are not part of it: the epilogue of the GEMM applies scale2 to each
// weight's rows.
KbitImage kbit_image(const WeightView& weight);
KbitImage kbit_image(const WeightView& gate, const WeightView& up);
// Describes the image of one weight without a look at the codebook: all but sign_magnitude of k-bit
// weights. Throws for a format or a k without images.
KbitImage image_shape(const WeightView& weight);
// And for a view whose data is the image, not rows.
KbitImage image_of_format(const WeightView& weight);
// The values of sorted codes: the weight's codebook; of FP4 the e2m1 numbers.
Codebook image_codebook(const WeightView& weight);
// Strips are independent: `strip` is the strip-th of image.num_strips(). bytes: [strip_bytes()]
void pack_kbit_strip(const KbitImage& image, std::span<const WeightView> weights, int64_t strip,
                     std::span<uint8_t> bytes);
// The inverse into tensors like those of the weights, one pair per weight.
struct ImageTensors {
  TensorView data, scale;
};
void unpack_kbit_strip(const KbitImage& image, std::span<const uint8_t> bytes, int64_t strip,
                       std::span<const ImageTensors> weights);

}  // namespace dsv4
