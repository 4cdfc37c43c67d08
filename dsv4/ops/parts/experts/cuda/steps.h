// The steps of the experts op around its GEMMs, on CUDA. Rows are contiguous; those of y, acc and
// SwigluStep::hidden may have any stride.

#pragma once

#include "dsv4/device/device.h"
#include "dsv4/ops/parts/experts/experts.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

// x: [rows, d] f32|bf16|f16 -> out: [rows, d] bf16, after Q8 over groups of 128. The store is
// exact, because a code times a power of two is a bf16 number.
void experts_quantize(Device& device, const ConstTensorView& x, const TensorView& out);

struct SwigluStep {
  ConstTensorView gate_up;        // [pairs, 2 i] f32|bf16, rows of gate, then up
  const float* weight = nullptr;  // [pairs] router weight; null: 1
  float limit = 0;                // 0: no clamp
  bool quantize = false;          // Q8 over groups of 128, after the rounding to hidden's dtype
  TensorView hidden;              // [pairs, i] bf16 where gate_up is, else f32|bf16|f16
  Mirrors mirrors{};              // of hidden
  GateActivation activation = GateActivation::kSilu;
};
void experts_swiglu(Device& device, const SwigluStep& step);

// SwiGLU, rounded to bf16, and Q8 of it, in one pass over gate and up.
struct SwigluQ8Step {
  ConstTensorView gate_up;  // [t, 2 i] bf16, rows of gate, then up; i a multiple of 128
  float limit = 0;          // 0: no clamp
  TensorView codes;         // [t, i] E4M3
  TensorView scales;        // [t, i / 128] E8M0
};
void experts_swiglu_q8(Device& device, const SwigluQ8Step& step);

struct CombineStep {
  ConstTensorView y;                 // [pairs, d] f32|bf16
  const int32_t* pair_of = nullptr;  // [t, slots] the pair of each slot; null: token t has pair t
  // Instead of it: pair t * slots + i of token t, in the order of ids [t, slots] I32 in
  // [0, num_ids), where other numbers stand for 0.
  ConstTensorView ids{};
  int64_t num_ids = 0;
  int64_t slots = 1;
  bool add = true;
  ConstTensorView addend{};  // [t, d] f32|bf16; empty: nothing
  TensorView acc;            // [t, d] f32
  Mirrors mirrors{};         // of acc
};
// Adds a token's pairs in ascending order, which is ascending expert, then slot; then the addend.
void experts_combine(Device& device, const CombineStep& step);

// rows[i] = y[pair_of[i]] where ids[i] is in [first, end).
struct SpreadStep {
  ConstTensorView y;       // [pairs, n] f32|bf16
  const int32_t* pair_of;  // [t, k]
  ConstTensorView ids;     // [t, k] I32
  int64_t first, end;
  TensorView rows;  // [t * k, n], of the dtype of y
};
void experts_spread(Device& device, const SpreadStep& step);

}  // namespace dsv4
