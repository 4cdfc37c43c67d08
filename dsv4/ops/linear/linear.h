// Linear layer over a weight in any stored format (spec dsv4.md 7.5, formats/weight.h).
//
//   out[t, n] = sum_k x[t, k] * w[n, k]
//
// With groups the weight is block-diagonal: column block g of x meets row block g of the weight and
// gives column block g of out (wo_a: one block for each group of heads).
//
// f32 accumulation; the only rounding is the store. Activations come as floats, or as Q8 codes with
// one UE8M0 scale per 128 columns, which is what the official engine feeds to quantised weights.
// All those scales are powers of two, so scaling operands or partial sums gives the same bits. Not
// here: bias (the model has none), activation functions, splitting over devices.

#pragma once

#include "dsv4/formats/weight.h"
#include "dsv4/ops/op.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct LinearArgs {
  ConstTensorView x;        // [t, groups * k] f32|bf16|E4M3; rows may be strided
  ConstTensorView x_scale;  // [t, groups * ceil(k / 128)] E8M0, only with E4M3
  WeightView weight;        // [groups * n, k]; of fp8 blocks, n is a multiple of 128 or groups is 1
  TensorView out;           // [t, groups * n] f32|bf16; rows may be strided
  int64_t groups = 1;
};

// Columns that share one scale in x_scale.
inline constexpr int64_t kActivationGroup = 128;

extern const Op<LinearArgs> linear;

}  // namespace dsv4
