// The token-expert pairs of a call, and the steps that its products stand between: Q8 of the input,
// clamped SwiGLU, and the sum over a token's experts.

#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "dsv4/ops/parts/experts/experts.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4::experts_kernel {

// In order of expert, then token, then slot, which is the position among the token's experts.
struct Pairs {
  std::vector<int64_t> first;  // [e + 1]: pairs of expert i are [first[i], first[i + 1])
  std::vector<int32_t> token;  // [pairs]
  std::vector<int32_t> row;    // [pairs]: token * k + slot
};

// ids: [t, k] I32; empty: all of t tokens go to the only expert. Pairs of other ids than
// [first_id, first_id + num_experts) are left out; expert i has the id first_id + i.
Pairs make_pairs(const ConstTensorView& ids, int64_t t, int64_t num_experts, int64_t first_id = 0);

// Throws unless every id is in [0, num_experts). Call before anything is written.
void check_ids(const ConstTensorView& ids, int64_t num_experts);

// The weight of the pair with this row; 1 without weights. weights: [t, k] f32, or empty
float weight_of(const ConstTensorView& weights, int32_t row);

// Q8 of x, decoded: [t, d] f32.
Buffer quantized_rows(const ConstTensorView& x);
// Row rows[i] of x as row i.
Buffer quantized_rows(const ConstTensorView& x, std::span<const int32_t> rows);

// h = weight * (activation(g) * u), clamped, rounded to bf16 under kOfficial.
struct GatedPairs {
  TensorView gate, up;                   // [pairs, i] f32|bf16, contiguous
  std::function<float(int64_t)> weight;  // of a pair
  GateActivation activation = GateActivation::kSilu;
  float limit = 0;  // 0: none
  bool official = false;
  // Receives a pair and its h, [i] f32, which it may change; several threads call it.
  std::function<void(int64_t, float*)> store;

  void run() const;
};

// acc[token of pair] += y[pair - base], in the order of the pairs. y: [n, d] f32|bf16, contiguous
void add_in_order(const Pairs& pairs, int64_t base, const ConstTensorView& y,
                  const TensorView& acc);
// acc[token of pair] += y[rows[pair]], in that order.
void add_in_order(const Pairs& pairs, const int32_t* rows, const ConstTensorView& y,
                  const TensorView& acc);

// acc += addend, if it is not empty. addend: [t, d] f32|bf16
void add_addend(const ConstTensorView& addend, const TensorView& acc);

void fill_zero(const TensorView& acc);  // [t, d] f32

}  // namespace dsv4::experts_kernel
