// A forward step that computes nothing: Model::forward() over a step, caches and logits that have
// shapes and addresses, but no memory.
//
// It makes the calls of a real step with the same extents, in the same order. Bytes of scratch,
// floors of time and lists of calls are read from it, so a step is described in one place,
// Model::forward().

#pragma once

#include <span>

#include "dsv4/model/model.h"
#include "dsv4/model/step.h"

namespace dsv4 {

struct StepLimits {
  int64_t tokens = 0;       // of one step, over all its sequences
  int64_t sequences = 0;    // in one step
  int64_t context = 0;      // tokens of a sequence, including those of the step
  int64_t logits_rows = 0;  // of one step
};

// Extents of the largest step that the limits allow: none of its sizes is exceeded by another step.
// groups: cache_groups() of the model
StepExtents largest_step(std::span<const CacheGroupSpec> groups, const StepLimits& limits);

// Extents of a step in which `tokens` sequences with `context` tokens each add one token.
StepExtents decode_step(std::span<const CacheGroupSpec> groups, int64_t tokens, int64_t context);

// The most bytes that a step takes from scratch at a time.
struct StepScratch {
  int64_t lists = 0;        // in make_step()
  int64_t activations = 0;  // in Model::forward()
};

// One forward step. Its calls must compute nothing: either context.observer runs none of them but
// those made of other calls (ImplInfo::parts), or context.device is a dry run (Device::dry_run),
// which launches nothing and counts its workspace.
// caches: one per layer, in any memory (unmapped_memory()); they are not accessed
// ranks: of a rank of several, sees its exchanges; null: they move nothing
StepScratch dry_run(const Model& model, const Context& context, const StepExtents& extents,
                    std::span<const LayerCache> caches, Communicator* ranks = nullptr);
// Guesses of the model's drafter for so many sequences that compute nothing either: a pass of MTP,
// or a block of DSpark, of which `guesses` are wanted.
// caches: of the drafter; head: Step::draft_head
StepScratch dry_run_draft(const Model& model, const Context& context, int64_t sequences,
                          int64_t guesses, std::span<const LayerCache> caches,
                          const WeightView* head = nullptr);

}  // namespace dsv4
