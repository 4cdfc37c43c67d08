// Quantizes a float matrix to FP8 blocks (WeightFormat::kFp8Block): E4M3 codes, one UE8M0 scale per
// 128 x 128 block,
//
//   scale = pow2ceil(max |x| / 448), at least 2^-126;  code = e4m3(x / scale)
//
// so that the largest magnitude falls in (224, 448]. The scale of a block of zeros is 1. Unlike the
// quantizer of activations (formats/quant_group.h) there is no lower bound of 1e-4 on the maximum.
// Blocks at the edges are smaller. Source: docs/spec/dsv4.md 10.3.

#pragma once

#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct QuantizeFp8Args {
  ConstTensorView x;  // [n, k] f32, finite; rows may be strided
  TensorView codes;   // [n, k] E4M3
  TensorView scales;  // [ceil(n/128), ceil(k/128)] E8M0
};

// Throws kBadInput with the row and column of a value that is not finite.
void quantize_fp8_blocks(const QuantizeFp8Args& args);

// x [n, k] f32 -> out [n, k] BF16, rounded to nearest even; throws as above, and on overflow.
void round_rows_to_bf16(const ConstTensorView& x, const TensorView& out);

}  // namespace dsv4
