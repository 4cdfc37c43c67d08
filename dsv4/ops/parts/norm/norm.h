// RMS normalization, two forms (docs/spec/dsv4.md 0.4).
//
//   rms_norm:   y = g * (x * rsqrt(mean(x^2) + eps)); f32 inside, one rounding at the store
//   head_norm:  the same without weight over each head of q; kOfficial rounds every step to bf16:
//               a = bf16(x * x), m = bf16(mean(a)), b = bf16(m + eps), c = bf16(rsqrt(b)),
//               y = bf16(x * c)

#pragma once

#include "dsv4/ops/op.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct RmsNormArgs {
  ConstTensorView x;       // [t, d] f32|bf16
  ConstTensorView weight;  // [d] f32|bf16
  TensorView out;          // [t, d] f32|bf16, may be x
  float eps = 1e-6f;
  // Q8 of out as quantize_q8 makes it, in groups of 128, for products that take it; rank 0: not
  // wanted.
  TensorView codes{};   // [t, d] E4M3
  TensorView scales{};  // [t, ceil(d / 128)] E8M0
};

struct HeadNormArgs {
  ConstTensorView x;  // [rows, d] f32|bf16, one row per token and head
  TensorView out;     // [rows, d] f32|bf16, may be x
  float eps = 1e-6f;
};

extern const Op<RmsNormArgs> rms_norm;

extern const Op<HeadNormArgs> head_norm;

}  // namespace dsv4
