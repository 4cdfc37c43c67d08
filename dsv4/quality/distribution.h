// Quantities of a row of logits, computed in fp64 whatever the dtype of the logits:
//
//   log p_i = x_i - log sum_j exp x_j       nll = -log p_target
//   KL(p || q) = sum_i p_i (log p_i - log q_i), in nats
//
// Equal logits give a KL of exactly 0. NaN or infinite logits are an error that names the position,
// never a result.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dsv4/quality/windows.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

double log_sum_exp(std::span<const float> logits);

// Clamped to 0 from below: rounding could give a negative value for nearly equal rows.
double kl_divergence(std::span<const float> reference, std::span<const float> model);

int32_t best_token(std::span<const float> logits);  // the largest logit; ties go to the lowest id

// -log p of every target of a piece. logits: [n, V] f32. Throws kBadInput "NAME: the logit of token
// 3 at position 17 of window 2 is nan".
std::vector<double> negative_log_likelihoods(const ConstTensorView& logits, const Piece& piece,
                                             const std::string& name);

}  // namespace dsv4
