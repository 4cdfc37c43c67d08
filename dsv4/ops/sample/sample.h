// Token choice from logits.
//
//   temperature 0: the largest logit, ties to the lowest id
//   otherwise:     p = softmax(logits / temperature); keep the top_k largest (0: all), then the
//   smallest
//                  set whose mass reaches top_p, ties to the lowest id; draw by inverse CDF with
//                  the uniform random_uniform(seed, step), candidates in descending p
//   logprob:       log softmax of the raw logits at the chosen id (temperature and cuts not
//   applied)

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
  ConstTensorView logits;  // [b, v] f32; a row with a NaN or without a finite value throws
  std::span<const SamplingParams> params;  // [b]
  std::span<const uint64_t> steps;  // [b] position of the draw in the request's random stream
  TensorView ids;                   // [b] I32
  TensorView logprobs;              // [b] f32
};

Table<SampleArgs> sample_rows();
Cost sample_cost(const SampleArgs& args);
void sample(const Context& context, const SampleArgs& args);

}  // namespace dsv4
