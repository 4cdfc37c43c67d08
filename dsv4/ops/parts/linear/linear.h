// Linear layer over a weight in any stored format (docs/spec/dsv4.md 7.5, formats/weight.h).
//
//   out[t, n] = sum_k x[t, k] * w[n, k]
//
// With groups the weight is block-diagonal: column block g of x is multiplied with row block g of
// the weight and gives column block g of out (wo_a: one block for each group of heads).
//
// With quantize_x the product is that of Q8 of x: codes with one UE8M0 scale per 128 columns
// (quantize_q8), which the official engine feeds to quantized weights.
//
// Accumulation is in f32; the only rounding is the store. Activations are floats, or such codes
// and scales. The scales are powers of two, so scaling operands or partial sums gives the same
// bits. The op has no bias (the model has none) and no activation function, and does not split over
// devices.

#pragma once

#include "dsv4/formats/weight.h"
#include "dsv4/ops/op.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct LinearArgs {
  ConstTensorView x;        // [t, groups * k] f32|bf16|f16|E4M3; rows may be strided
  ConstTensorView x_scale;  // [t, groups * ceil(k / 128)] E8M0, only with E4M3
  WeightView weight;  // [groups * n, k]; for FP8 blocks, n is a multiple of 128 or groups is 1
  TensorView out;     // [t, groups * n] f32|bf16|f16; rows may be strided
  int64_t groups = 1;
  bool quantize_x = false;  // of f32|bf16 x; with groups, k is a multiple of 128
};

extern const Op<LinearArgs> linear;

// Why implementations that take x as it is refuse a call; null: they do not.
inline const char* reject_quantize(const LinearArgs& args) {
  return args.quantize_x ? "x has to be quantized first" : nullptr;
}

// Why implementations without f16 refuse a call; null: they do not.
inline const char* reject_f16(const LinearArgs& args) {
  const bool has_f16 = args.x.dtype == DType::kF16 || args.out.dtype == DType::kF16;
  return has_f16 ? "x or out is f16" : nullptr;
}

}  // namespace dsv4
