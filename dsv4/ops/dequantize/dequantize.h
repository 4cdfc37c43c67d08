// dequantize: a weight in any stored format (formats/weight.h) as plain numbers.
//
//   out[n, k] = value of (row n, column k)
//
// f32 inside: code value * scale, both exact in f32, rounded once; then * scale2 where there is one
// (NVFP4's first product is exact); the store rounds to the dtype of
// `out`. NaN scales and codes give NaN.

#pragma once

#include "dsv4/formats/weight.h"
#include "dsv4/ops/op.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct DequantizeArgs {
  WeightView weight;  // [n, k]
  TensorView out;     // [n, k] f32|bf16|f16; rows may be strided
};

extern const Op<DequantizeArgs> dequantize;

}  // namespace dsv4
