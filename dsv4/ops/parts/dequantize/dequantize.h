// dequantize: converts a weight in any stored format (formats/weight.h) to floats.
//
//   out[n, k] = value of (row n, column k)
//
// Computed in f32: code value * scale, both exact in f32, rounded once; then * scale2 in the
// formats that have one (NVFP4's first multiplication is exact); the store rounds to the dtype of
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
