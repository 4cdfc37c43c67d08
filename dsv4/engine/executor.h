// Runs a list of token runs through the model: reserves cache room, builds the batch, commits.

#pragma once

#include <span>
#include <vector>

#include "dsv4/engine/model_cache.h"
#include "dsv4/model/model.h"

namespace dsv4 {

struct Work {
  SeqId seq{};
  std::span<const int32_t> ids;  // the next tokens of the sequence
  enum class Logits { kNone, kLast, kAll } logits = Logits::kNone;
};

class Executor {
 public:
  // Reserves the cache and the workspace that the limits ask for (cache_plan.h, workspace.h).
  Executor(const Model& model, const Context& context, const CacheLimits& limits);

  KvCache& cache() { return cache_.pages(); }
  const CacheLimits& limits() const { return cache_.limits(); }
  const Scratch& scratch() const { return scratch_; }

  // Logits of the wanted tokens in the order of `work`: [rows, V] f32, valid until the next call.
  // Throws kResource when the cache has no room for all of it: no token was taken in, and pages
  // that were reserved meanwhile stay with their sequences. A sequence may appear once.
  ConstTensorView run(std::span<const Work> work);

 private:
  const Model& model_;
  Context context_;
  ModelCache cache_;
  Scratch scratch_;
  Buffer logits_;
};

}  // namespace dsv4
