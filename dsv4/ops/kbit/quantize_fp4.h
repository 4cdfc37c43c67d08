// quantize_fp4: converts a matrix of floats to FP4: e2m1 codes, one scale per group of columns.
//
//   MXFP4   groups of 32, scale 2^(b - 127)
//   NVFP4   groups of 16, scale e4m3(b) * scale2
//
// scale2 is max |x| / (6 * 448) of the weight, rounded up to a power of two: values of MXFP4 then
// stay what they are.
//
// searched: the scale of a group is the one of least sum_i importance_i (value_i - x_i)^2 among the
// candidates (quantize_fp4_group.h); of equal errors the smaller. Otherwise the one that the
// formats' papers give: the largest power of two that keeps the group's largest magnitude below 8,
// or the e4m3 number nearest to it over 6. The codes are the nearest values in both cases. Source:
// OCP Microscaling specification 1.0, 6.3; docs/spec/lowbit.md 6.

#pragma once

#include "dsv4/formats/weight.h"
#include "dsv4/ops/op.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct QuantizeFp4Args {
  WeightFormat format = WeightFormat::kMxfp4;  // or kNvfp4
  ConstTensorView x;                           // [n, k] f32, finite; rows may be strided
  ConstTensorView importance{};                // [k] f32; empty: all equal
  bool searched = true;
  float scale2 = 1.f;  // kNvfp4
  TensorView pairs;    // [n, k/2] U8; rows may be strided
  TensorView scales;   // [n, k/32] E8M0, or [n, k/16] E4M3; rows may be strided
  // On a GPU, where no value can be refused: [1] I32, lowered to the number (row * groups + group)
  // of the first group with a value that is not finite, which is not written. May be absent.
  TensorView first_bad{};
};

// On the host, throws kBadInput with the row and column of a value that is not finite.
extern const Op<QuantizeFp4Args> quantize_fp4;

// scale2 of an NVFP4 weight with this largest magnitude; 1 for zeros.
float nvfp4_tensor_scale(float largest_magnitude);

}  // namespace dsv4
