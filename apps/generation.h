// Sampling defaults of a model folder: generation_config.json (docs/spec/dsv4.md 15).

#pragma once

#include <string>

#include "dsv4/ops/model/sample/sample.h"

namespace dsv4::apps {

// temperature, top_p, top_k, min_p, repetition_penalty as in the file; 1, 1, off, off, off where
// they or the file are missing; greedy when do_sample is false. Throws kBadInput on a value that is
// not a number or out of range.
SamplingParams load_sampling_defaults(const std::string& folder);

}  // namespace dsv4::apps
