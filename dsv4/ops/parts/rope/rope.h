// Rotary position embedding of the last 2 * num_pairs dims, adjacent pairs (docs/spec/dsv4.md 4.2).
//
//   phi = fl32(position * f_i);  (a, b) <- (a cos phi - b sin phi, a sin phi + b cos phi)
//   inverse: -sin. f32 inside with full-accuracy cos and sin (positions reach 1e6), one rounding.

#pragma once

#include <vector>

#include "dsv4/ops/op.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct YarnParams {
  bool on = false;
  double factor = 16, original_positions = 65536, beta_fast = 32, beta_slow = 1;
};

// f_0..f_{dim/2-1} in f32: base^(-2i/dim), with YaRN's ramp if enabled. No mscale.
std::vector<float> rope_frequencies(int dim, double base, const YarnParams& yarn);

struct RopeArgs {
  TensorView x;  // [t, h, d] f32|bf16, in place; dims d - 2 * num_pairs .. d - 1 rotate
  ConstTensorView positions;  // [t] I32
  ConstTensorView freqs;      // [num_pairs] f32
  bool inverse = false;
};

extern const Op<RopeArgs> rope;

}  // namespace dsv4
