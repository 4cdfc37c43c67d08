// The output path of attention: the heads of a group side by side, a low-rank product per group,
// and a product that mixes the groups (docs/spec/dsv4.md 4.6).
//
//   u = o wo_a^T   block-diagonal: one block for each group of h / groups heads
//   y = u wo_b^T
//
// kOfficial: o is not quantized; u is stored in bf16 and then passes through Q8 (groups of 128)
// where the format of wo_b is quantized (docs/spec/dsv4.md 7.5).

#pragma once

#include "dsv4/formats/weight.h"
#include "dsv4/ops/op.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct AttentionOutArgs {
  ConstTensorView o;  // [t, h, d] f32|bf16, contiguous
  WeightView wo_a;    // [groups * r, h * d / groups]; for FP8 blocks, r is a multiple of 128
  WeightView wo_b;    // [D, groups * r]
  int64_t groups = 1;
  TensorView y;  // [t, D] f32|bf16
};

extern const Op<AttentionOutArgs> attention_out;

}  // namespace dsv4
