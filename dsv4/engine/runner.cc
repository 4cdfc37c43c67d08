#include "dsv4/engine/runner.h"

#include "dsv4/base/error.h"
#include "dsv4/engine/workspace.h"

namespace dsv4 {
namespace {

class HostRunner : public Runner {
 public:
  HostRunner(const Model& model, const Context& context, const CacheLimits& limits)
      : model_(model), context_(context) {
    context_.workspace = &scratch_;
    scratch_.reserve(plan_workspace(model, context, limits, 0).step);
  }

  Memory& memory() override { return host_memory(); }
  const Scratch& scratch() const override { return scratch_; }

  void observe(Observer* observer) override { context_.observer = observer; }
  void forward(const ForwardBatch& batch, std::span<const LayerCache> caches,
               const TensorView& logits) override {
    const Scratch::Scope scope(scratch_);
    const std::vector<CacheGroupSpec>& groups = model_.cache_groups();
    Step step = make_step(context_, model_.config(), groups, batch, step_extents(groups, batch),
                          StepLists(scratch_), scratch_);
    model_.forward(step, caches, logits);
  }

  std::vector<Sampled> sample(const ConstTensorView& logits, std::span<const SamplingParams> params,
                              std::span<const uint64_t> steps) override {
    const auto n = static_cast<int64_t>(params.size());
    const Buffer ids(DType::kI32, {n}), logprobs(DType::kF32, {n});
    dsv4::sample(
        context_,
        {.logits = logits, .params = params, .steps = steps, .ids = ids, .logprobs = logprobs});
    std::vector<Sampled> tokens;
    for (int64_t i = 0; i < n; ++i)
      tokens.push_back({ids.as<int32_t>()[i], logprobs.as<float>()[i]});
    return tokens;
  }

 private:
  const Model& model_;
  Context context_;
  Scratch scratch_;
};

}  // namespace

std::unique_ptr<Runner> make_runner(const Model& model, const Context& context,
                                    const CacheLimits& limits) {
#if DSV4_CUDA
  if (context.device != nullptr) return make_device_runner(model, context, limits);
#endif
  DSV4_CHECK(context.device == nullptr, "this build runs on the {} only", "host");
  return std::make_unique<HostRunner>(model, context, limits);
}

}  // namespace dsv4
