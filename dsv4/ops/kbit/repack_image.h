// repack_image: converts a k-bit or FP4 weight between the rows of files (formats/weight.h) and its
// kernel image (formats/kbit_image.h), in both directions. Codes and scales are moved, never
// changed.
//
// Codes of an antisymmetric codebook are stored as sign and magnitude in an image, so the codebook
// decides the bytes; on a GPU it is read there.

#pragma once

#include "dsv4/formats/weight.h"
#include "dsv4/ops/op.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct RepackImageArgs {
  bool to_image = true;
  // [n, k] kKbit|kMxfp4|kNvfp4, k a multiple of 32. Its data and scale are those of the rows, which
  // are read, or written where to_image is false: then they are `data` and `scale` too. On a GPU
  // without gaps; these and the image at multiples of 4 bytes.
  WeightView weight;
  TensorView data, scale;
  ConstTensorView image;   // [bytes] U8, read
  TensorView image_out{};  // [bytes] U8, written
};

extern const Op<RepackImageArgs> repack_image;

}  // namespace dsv4
