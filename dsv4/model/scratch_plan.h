// How much scratch memory a forward step takes, known before there are weights or a batch.
//
// The same takes and scopes as in make_step(), attention(), moe() and Model::forward(), walked with
// counting Scratches for the largest step that the limits allow. Whoever changes a take there
// changes it here: tests/engine/workspace_test.cc runs both.

#pragma once

#include "dsv4/model/config.h"
#include "dsv4/ops/op.h"

namespace dsv4 {

struct StepLimits {
  int64_t tokens = 0;       // of one step, over all its sequences
  int64_t sequences = 0;    // in one step
  int64_t context = 0;      // tokens of a sequence, with those of the step
  int64_t logits_rows = 0;  // of one step
};

// Each the most that any step takes; the largest lists and activations need not be one step's.
struct ScratchPlan {
  int64_t lists = 0;        // of make_step(); on a device twice: where written, where read
  int64_t activations = 0;  // of Model::forward()
  int64_t together = 0;     // of both, where they share a scratch
};

ScratchPlan forward_scratch(const ModelConfig& config, Numerics numerics, const StepLimits& limits);

}  // namespace dsv4
