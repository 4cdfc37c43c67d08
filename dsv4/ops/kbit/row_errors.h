// row_errors: what each row of a weight lost in a conversion, as sums over its columns in order:
//
//   sums[row] = { sum x^2, sum (y - x)^2, sum x y, sum h x^2, sum h x y }
//
// x is the source, y what a reader decodes. Terms and sums are f64, without fused multiplications,
// so every implementation has the same bits: files hold a gain that is made of them
// (convert/weight_error.h).

#pragma once

#include "dsv4/ops/op.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

inline constexpr int64_t kErrorSums = 5;

struct RowErrorsArgs {
  ConstTensorView x, y;          // [n, k] f32; rows may be strided
  ConstTensorView importance{};  // h: [k] f32; empty: ones
  TensorView sums;               // [n, 5] F64; rows may be strided
};

extern const Op<RowErrorsArgs> row_errors;

}  // namespace dsv4
