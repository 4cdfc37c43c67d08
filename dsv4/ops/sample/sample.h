// Samples tokens from logits.
//
//   temperature 0: the largest logit, ties to the lowest id
//   otherwise:     p = softmax(logits / temperature) over the top_k largest (0: all); of these, the
//                  smallest set whose mass reaches top_p of theirs, ties to the lowest id; drawn by
//                  inverse CDF with random_uniform(seed, step), candidates in descending p
//   logprob:       log softmax of the raw logits at the chosen id: no temperature, no cuts
//
// A logit of -inf bans a token: it is never chosen. Computation after the logits is in f64.
//
// A row of logits with NaN or +inf, or all -inf, throws in host memory. A device implementation
// cannot throw: such a row gives id -1 and logprob NaN, and the caller must pass valid parameters.

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
};

struct SampleArgs {
  ConstTensorView logits;  // [b, v] f32
  // Both are in the same memory as the tensors: device implementations read them when they run.
  std::span<const SamplingParams> params;  // [b]
  std::span<const uint64_t> steps;  // [b] position of the draw in the request's random stream
  TensorView ids;                   // [b] I32
  TensorView logprobs;              // [b] f32
};

extern const Op<SampleArgs> sample;

}  // namespace dsv4
