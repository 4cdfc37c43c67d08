// How a command draws tokens: the flags of `dsv4 run` and `dsv4 chat`. What is not given is the
// model's (generation.h).

#pragma once

#include <optional>
#include <vector>

#include "dsv4/engine/token_terms.h"

namespace CLI {
class App;
}  // namespace CLI

namespace dsv4::apps {

struct SamplingOptions {
  std::optional<float> temperature, top_p, min_p;
  std::optional<float> repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int> top_k;
  std::optional<uint64_t> seed;
  std::vector<LogitBias> logit_bias;

  SamplingParams applied_to(SamplingParams params) const;  // all but the seed
};

void add_sampling_options(CLI::App& command, SamplingOptions& options);

}  // namespace dsv4::apps
