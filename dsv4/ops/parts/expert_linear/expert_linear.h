// Linear layers of a list of experts over rows that are sorted by expert.
//
//   out[r] = w_e x[r]    for offsets[e] <= r < offsets[e + 1]
//
// Each weight has a format of its own (formats/weight.h), also a K of its own. An expert without
// rows costs nothing. Accumulation is in f32; the only rounding is the store. The op has no bias
// and no activation function (experts.h has), and does not sort rows.

#pragma once

#include <span>

#include "dsv4/formats/weight.h"
#include "dsv4/ops/op.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct ExpertLinearArgs {
  ConstTensorView x;                    // [rows, k] f32|bf16|f16; rows may be strided
  std::span<const WeightView> weights;  // e weights [n, k]
  // [e + 1] I32, ascending from 0 to rows. On a GPU they are not checked.
  ConstTensorView offsets;
  TensorView out;  // [rows, n] f32|bf16|f16; rows may be strided
};

extern const Op<ExpertLinearArgs> expert_linear;

}  // namespace dsv4
