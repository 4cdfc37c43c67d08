// Bytes that a decode step must read and flops that a step must compute, from the model alone: the
// lower bound of the times that `dsv4 bench` measures.

#pragma once

#include "dsv4/model/model.h"
#include "dsv4/ops/op.h"

namespace dsv4 {

struct StepCost {
  double weight_bytes = 0;  // read once; of the routed experts those that are expected to be chosen
  double cache_bytes = 0;   // rows that the queries attend to, indexer keys that they score
  double flops = 0;
  double bytes() const { return weight_bytes + cache_bytes; }
};

// `tokens` queries of distinct sequences with `context` tokens each (decode).
StepCost decode_cost(const Model& model, Numerics numerics, int64_t tokens, int64_t context);

// A prompt of `tokens` tokens, in chunks of `chunk`, each of which reads all weights.
StepCost prefill_cost(const Model& model, Numerics numerics, int64_t tokens, int64_t chunk);

}  // namespace dsv4
