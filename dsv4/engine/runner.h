// Runs steps of the network where the model lies: on the host, or on a device.
//
// The executor above it reserves cache room and builds batches; what differs between host and
// device is here: where lists and temporaries live, how a step is launched, how a token is chosen.

#pragma once

#include <memory>
#include <span>

#include "dsv4/engine/cache_plan.h"
#include "dsv4/model/model.h"
#include "dsv4/ops/sample/sample.h"

namespace dsv4 {

struct Sampled {
  int32_t id = -1;
  float logprob = 0.f;
};

class Runner {
 public:
  virtual ~Runner() = default;

  virtual Memory& memory() = 0;  // for caches and logits
  virtual const Scratch& scratch() const = 0;
  // Runs the batch, or starts to. logits: [batch.logits_rows.size() or more, V] f32
  virtual void forward(const ForwardBatch& batch, std::span<const LayerCache> caches,
                       const TensorView& logits) = 0;
  // One token a row; done when it returns. Throws kInvalidArgument when a row's logits are not
  // numbers to choose from. logits: [b, V] f32; params, steps: [b]
  virtual std::vector<Sampled> sample(const ConstTensorView& logits,
                                      std::span<const SamplingParams> params,
                                      std::span<const uint64_t> steps) = 0;
  // Until everything that was started is done.
  virtual void wait() {}
};

// On context.device, or on the host when there is none.
std::unique_ptr<Runner> make_runner(const Model& model, const Context& context,
                                    const CacheLimits& limits);
std::unique_ptr<Runner> make_device_runner(const Model& model, const Context& context,
                                           const CacheLimits& limits);  // CUDA builds

}  // namespace dsv4
