#include "dsv4/plan/step_cost.h"

#include <algorithm>
#include <memory>

#include "dsv4/engine/model_cache.h"
#include "dsv4/model/dry_run.h"
#include "dsv4/ops/model/moe/moe.h"
#include "dsv4/ops/model/moe/moe_hidden.h"
#include "dsv4/ops/model/moe/moe_output.h"
#include "dsv4/ops/parts/experts/halves.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#endif

namespace dsv4 {
namespace {

class CostMeter final : public Observer {
 public:
  void observe(const OpCall& call) override {
    if (call.impl().parts()) return call.run();
    const Cost cost = floor_of(call);
    sum_.weight_bytes += cost.weight_bytes;
    sum_.cache_bytes += cost.cache_bytes;
    sum_.flops += cost.flops;
  }
  const StepCost& sum() const { return sum_; }

 private:
  StepCost sum_;
};

StepCost cost_of(const Model& model, Numerics numerics, const StepExtents& extents) {
  CostMeter meter;
  const ModelCache cache(model.config(), numerics, {.max_tokens = 1, .max_batch_tokens = 1},
                         unmapped_memory());
  Context context{.numerics = numerics, .observer = &meter};
#if DSV4_CUDA
  // Experts in kernel images are read on the device only.
  const std::unique_ptr<Device> dry =
      model.device() != nullptr ? Device::dry_run(model.device()->info()) : nullptr;
  context.device = dry.get();
#endif
  dry_run(model, context, extents, cache.layers());
  return meter.sum();
}

}  // namespace

Cost floor_of(const OpCall& call) {
  if (const ExpertsArgs* args = call.args_of(experts)) return expected_cost(*args);
  if (const ExpertsHiddenArgs* args = call.args_of(experts_hidden)) return expected_cost(*args);
  if (const ExpertsOutputArgs* args = call.args_of(experts_output)) return expected_cost(*args);
  if (const MoeArgs* args = call.args_of(moe)) return expected_cost(*args);
  if (const MoeHiddenArgs* args = call.args_of(moe_hidden)) return expected_cost(*args);
  if (const MoeOutputArgs* args = call.args_of(moe_output)) return expected_cost(*args);
  return call.cost();
}

StepCost decode_cost(const Model& model, Numerics numerics, int64_t tokens, int64_t context) {
  return cost_of(model, numerics, decode_step(model.cache_groups(), tokens, context));
}

// The context that a chunk sees is taken in its middle.
StepCost prefill_cost(const Model& model, Numerics numerics, int64_t tokens, int64_t chunk) {
  StepCost sum;
  for (int64_t first = 0; first < tokens; first += chunk) {
    const int64_t count = std::min(chunk, tokens - first);
    StepExtents extents = largest_step(model.cache_groups(),
                                       {.tokens = count, .sequences = 1, .context = first + count});
    const StepExtents middle =
        largest_step(model.cache_groups(),
                     {.tokens = count, .sequences = 1, .context = first + (count + 1) / 2});
    for (size_t g = 0; g < extents.groups.size(); ++g)
      extents.groups[g].visible = middle.groups[g].visible;
    extents.logits_rows = first + count == tokens ? 1 : 0;
    const StepCost step = cost_of(model, numerics, extents);
    sum.weight_bytes += step.weight_bytes;
    sum.cache_bytes += step.cache_bytes;
    sum.flops += step.flops;
  }
  return sum;
}

}  // namespace dsv4
