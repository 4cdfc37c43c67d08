// fp64 oracle of sample.h. Linked by tests and benchmarks only.

#pragma once

#include <vector>

#include "dsv4/ops/model/sample/sample.h"

namespace dsv4 {

struct SampleWant {
  std::vector<double> ids;           // [b]
  std::vector<double> logprobs;      // [b]
  std::vector<double> top_ids;       // [b, n], empty without top_ids
  std::vector<double> top_logprobs;  // [b, n]
};

SampleWant sample_oracle(const SampleArgs& args);

// Probability of every id after temperature and cuts. [v]
std::vector<double> sample_distribution(const SamplingParams& params, const float* logits,
                                        int64_t v);

// What drawn_logprobs() is about: log-probability of every id of a row; -inf: it cannot be drawn.
std::vector<double> drawn_logprobs_oracle(const SampleArgs& args, int64_t row);  // [v]

}  // namespace dsv4
