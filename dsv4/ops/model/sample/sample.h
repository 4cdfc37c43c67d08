// Samples tokens from logits. In this order, for a row:
//
//   adjust    f32, one rounding each, for the tokens in `terms`:
//               seen:  l = l > 0 ? l / repetition_penalty : l * repetition_penalty
//               l = l - frequency_penalty * count; count > 0: l = l - presence_penalty
//               l = l + bias
//             then l = -inf where the mask has no bit
//   choose    temperature 0: the largest l, ties to the lowest id
//             otherwise:     p = softmax(l / temperature); tokens with p < min_p of the largest p
//               are dropped; then all but the top_k largest (0: none); of these, the smallest set
//               whose mass reaches top_p of theirs stays. Both keep the largest l, and of equal l
//               the lowest ids. Drawn by inverse CDF with random_uniform(seed, step) over what is
//               left, in ascending id (docs/adr/0025-draws-in-order-of-ids.md)
//   logprob   log softmax of the logits as given: no terms, no mask, no temperature, no cuts
//
// Probabilities are integers of up to 46 bits (mass.h), so the choice has the same bits in every
// implementation and in every batch. A token less likely than 2^-46 of the likeliest is never
// drawn. A logit of -inf bans a token.
//
// A row of logits with NaN or +inf, or all -inf, throws in host memory, and so does a row all of
// whose tokens are banned by the mask and the terms. A device implementation cannot throw: such a
// row gives id -1 and logprob NaN, and the caller must pass valid parameters.

#pragma once

#include <cstdint>
#include <span>

#include "dsv4/ops/op.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct SamplingParams {
  float temperature = 1.f;  // >= 0
  float top_p = 1.f;        // in (0, 1]
  int top_k = 0;            // 0: off
  uint64_t seed = 0;
  float min_p = 0.f;  // in [0, 1]; 0: off
  // Penalties apply to the tokens in SampleArgs::terms; these values change nothing.
  float repetition_penalty = 1.f;  // > 0
  float frequency_penalty = 0.f, presence_penalty = 0.f;
  int top_logprobs = 0;  // how many to report; at most SampleArgs::top_ids has room for
  // Not read by the op: its caller wants what drawn_logprobs() gives instead.
  bool processed_logprobs = false;
};

// What is known of one token of the vocabulary for one row.
struct TokenTerm {
  int32_t id = 0;
  int32_t count = 0;  // in the answer so far
  int32_t seen = 0;   // 1: in the prompt or in the answer
  float bias = 0;     // added to its logit
};

inline constexpr int kMaxTopLogprobs = 20;

struct SampleArgs {
  ConstTensorView logits;  // [b, v] f32
  // All lists are in the same memory as the tensors: device implementations read them when they
  // run.
  std::span<const SamplingParams> params;  // [b]
  std::span<const uint64_t> steps;  // [b] position of the draw in the request's random stream
  TensorView ids;                   // [b] I32
  TensorView logprobs;              // [b] f32
  // Optional. Row r has terms [term_begin[r], term_begin[r + 1]), in ascending id, each id once.
  std::span<const TokenTerm> terms;
  std::span<const int32_t> term_begin;  // [b + 1], or empty: no row has terms
  ConstTensorView mask;  // [b, ceil(v / 32)] I32, bit id % 32 of word id / 32: allowed; or empty
  // Optional, together: the params.top_logprobs likeliest of the logits as given, in descending
  // order; the rest of a row is -1 and -inf.
  TensorView top_ids;       // [b, n] I32, n <= 20
  TensorView top_logprobs;  // [b, n] f32
};

extern const Op<SampleArgs> sample;

// Replaces the logprob and the likeliest tokens of a row, after sample() has chosen args.ids[row],
// by those of the distribution that the token was drawn from: after the terms, the mask, the
// temperature and the cuts. Tokens that cannot be drawn are not listed. At temperature 0 nothing is
// cut, and the distribution is softmax(l). On the host: everything in `args` is in host memory.
void drawn_logprobs(const SampleArgs& args, int64_t row);

}  // namespace dsv4
