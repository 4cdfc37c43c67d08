// The scratch memory of a forward step, computed before weights or a batch exist.
//
// Repeats the allocations and scopes of make_step(), attention(), moe() and Model::forward() with
// counting Scratches for the largest step that the limits allow. A change to an allocation there
// needs the same change here: tests/engine/workspace_test.cc compares both.

#pragma once

#include "dsv4/model/config.h"
#include "dsv4/ops/op.h"

namespace dsv4 {

struct StepLimits {
  int64_t tokens = 0;       // of one step, over all its sequences
  int64_t sequences = 0;    // in one step
  int64_t context = 0;      // tokens of a sequence, including those of the step
  int64_t logits_rows = 0;  // of one step
};

// Each is the maximum over all steps; lists and activations may reach theirs in different steps.
struct ScratchPlan {
  int64_t lists = 0;        // of make_step(); on a device allocated twice: written to, read from
  int64_t activations = 0;  // of Model::forward()
  int64_t together = 0;     // both, when they share a scratch
};

ScratchPlan forward_scratch(const ModelConfig& config, Numerics numerics, const StepLimits& limits);

}  // namespace dsv4
