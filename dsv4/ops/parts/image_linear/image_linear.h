// Linear layer over a weight that is a kernel image (formats/kbit_image.h).
//
//   out[t, n] = sum_k x[t, k] * w[n, k]
//
// Accumulation is in f32; the only rounding is the store. The op does not quantize x, has no bias
// and no implementation for every call: whoever has no other layout makes rows of the image
// (ops/kbit/repack_image.h) and calls linear.

#pragma once

#include "dsv4/formats/weight.h"
#include "dsv4/ops/op.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct ImageLinearArgs {
  ConstTensorView x;  // [t, k] f32|bf16|f16; rows may be strided
  // [n, k] kKbit|kMxfp4|kNvfp4. Its data is the image, [bytes] U8, and scale is empty; the codebook
  // of a k-bit weight is antisymmetric.
  WeightView weight;
  TensorView out;  // [t, n] f32|bf16|f16; rows may be strided; not x
};

extern const Op<ImageLinearArgs> image_linear;

}  // namespace dsv4
