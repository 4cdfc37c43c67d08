// Token choice from logits.
//
//   temperature 0: the largest logit, ties to the lowest id
//   otherwise:     p = softmax(logits / temperature) over the top_k largest (0: all); of these the
//                  smallest set whose mass reaches top_p of theirs, ties to the lowest id; draw
//                  by inverse CDF with random_uniform(seed, step), candidates in descending p
//   logprob:       log softmax of the raw logits at the chosen id: no temperature, no cuts
//
// -inf bans a token: it is never chosen. Everything is f64 after the logits.
//
// A row of logits with NaN or +inf, or all -inf, throws in host memory. On a device nobody can
// throw: such a row gives id -1 and logprob NaN, and valid parameters are the caller's promise.

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
  // Both in the memory that the tensors are in: device rows read them when they run.
  std::span<const SamplingParams> params;  // [b]
  std::span<const uint64_t> steps;  // [b] position of the draw in the request's random stream
  TensorView ids;                   // [b] I32
  TensorView logprobs;              // [b] f32
};

extern const Op<SampleArgs> sample;

}  // namespace dsv4
