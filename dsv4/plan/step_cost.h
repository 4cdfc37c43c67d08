// Bytes that a step must read and flops that it must compute: the lower bound of the times that
// `dsv4 bench` measures. The costs of the calls of a dry run (model/dry_run.h), added up.

#pragma once

#include "dsv4/model/model.h"
#include "dsv4/ops/op.h"

namespace dsv4 {

struct StepCost {
  double weight_bytes = 0;  // of the routed experts those that are expected to be chosen
  double cache_bytes = 0;   // rows that the queries attend to, indexer keys that they score
  double flops = 0;
  double bytes() const { return weight_bytes + cache_bytes; }
};

// The floor of one call: of experts the expected one, because ids may be on a device.
Cost floor_of(const OpCall& call);

// `tokens` queries of distinct sequences with `context` tokens each (decode).
StepCost decode_cost(const Model& model, Numerics numerics, int64_t tokens, int64_t context);

// A prompt of `tokens` tokens, in chunks of `chunk`, each of which reads all weights.
StepCost prefill_cost(const Model& model, Numerics numerics, int64_t tokens, int64_t chunk);

}  // namespace dsv4
