// What a row of logits says, in fp64 whatever the logits' size:
//
//   log p_i = x_i - log sum_j exp x_j       nll = -log p_target
//   KL(p || q) = sum_i p_i (log p_i - log q_i), in nats
//
// Equal logits give a KL of exactly 0. Logits that are NaN or infinite are an error that says
// where, never a number.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dsv4/quality/windows.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

double log_sum_exp(std::span<const float> logits);

// Never below 0, which rounding could otherwise give for nearly equal rows.
double kl_divergence(std::span<const float> reference, std::span<const float> model);

int32_t best_token(std::span<const float> logits);  // the lowest id of the largest logit

// -log p of every target of a piece. logits: [n, V] f32. Throws kBadInput "WHO: the logit of token
// 3 at position 17 of window 2 is nan".
std::vector<double> negative_log_likelihoods(const ConstTensorView& logits, const Piece& piece,
                                             const std::string& who);

}  // namespace dsv4
