#include "dsv4/engine/workspace.h"

#include <algorithm>
#include <map>

#include "dsv4/base/bits.h"
#include "dsv4/comm/rank_processes.h"
#include "dsv4/engine/captured_steps.h"
#include "dsv4/engine/draft_buffers.h"
#include "dsv4/engine/draft_head.h"
#include "dsv4/engine/model_cache.h"
#include "dsv4/engine/token_terms.h"
#include "dsv4/model/dry_run.h"
#include "dsv4/model/ranks.h"
#include "dsv4/ops/model/sample/sample.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#endif

namespace dsv4 {
namespace {

// Adds up what CPU implementations take. A call gives back what it took, but the threads of one
// implementation keep vectors that those of another cannot use.
class HostMeter final : public Observer {
 public:
  void observe(const OpCall& call) override {
    if (call.impl().parts()) return call.run();
    const HostBytes bytes = call.host_bytes();
    int64_t& kept = per_thread_[call.op()];
    kept = std::max(kept, bytes.per_thread);
    shared_ = std::max(shared_, bytes.shared);
  }
  int64_t bytes(int threads) const {
    int64_t sum = shared_;
    for (const auto& [op, kept] : per_thread_) sum += threads * kept;
    return sum;
  }

 private:
  int64_t shared_ = 0;
  std::map<std::string_view, int64_t> per_thread_;
};

// Where the calls of a dry run go: to an observer on the host, to a dry device otherwise.
class DryContext {
 public:
  explicit DryContext(const Context& context) : context_(context) {
#if DSV4_CUDA
    if (context.device != nullptr) {
      device_ = Device::dry_run(context.device->info());
      context_.device = device_.get();
      return;
    }
#endif
    context_.observer = &meter_;
  }

  const Context& context() const {
    return context_;
  }
  int64_t kernel_bytes(int threads) const {
#if DSV4_CUDA
    if (device_ != nullptr) return device_->workspace().peak_bytes();
#endif
    return meter_.bytes(threads);
  }

 private:
  Context context_;
  HostMeter meter_;
#if DSV4_CUDA
  std::unique_ptr<Device> device_;
#endif
};

// Kernels are chosen as where the other ranks are there.
SymmetricMemory counting_symmetric(const ShardId& id) {
  SymmetricMemory counted{.halves = {Scratch::counting(), Scratch::counting()}, .mirrors = {}};
  counted.mirrors.count = std::min(id.world - 1, Mirrors::kMost);
  return counted;
}

// With everything that a row can bring.
void sample_nothing(const Context& context, int64_t rows, int64_t vocab) {
  const auto tensor = [](DType dtype, std::initializer_list<int64_t> shape) {
    return TensorView(TensorMeta::contiguous(dtype, shape), unmapped_address(0));
  };
  const std::vector<SamplingParams> params(static_cast<size_t>(rows));
  const std::vector<uint64_t> steps(static_cast<size_t>(rows));
  const std::vector<int32_t> begin(static_cast<size_t>(rows) + 1);
  sample(context, {.logits = tensor(DType::kF32, {rows, vocab}),
                   .params = params,
                   .steps = steps,
                   .ids = tensor(DType::kI32, {rows}),
                   .logprobs = tensor(DType::kF32, {rows}),
                   .term_begin = begin,
                   .mask = tensor(DType::kI32, {rows, ceil_div(vocab, 32)}),
                   .top_ids = tensor(DType::kI32, {rows, kMaxTopLogprobs}),
                   .top_logprobs = tensor(DType::kF32, {rows, kMaxTopLogprobs})});
}

StepLimits step_limits(const CacheLimits& limits) {
  return {.tokens = limits.max_batch_tokens,
          .sequences = limits.max_sequences,
          .context = limits.max_tokens,
          .logits_rows = limits.logits_rows()};
}

// The steps that reach the maxima. While the indexer would select every entry, all of them are
// listed instead, which can take more memory than the longest context does. A device also pads
// decode steps. A rank of several may compute more of smaller steps, of all tokens or of its share.
std::vector<StepExtents> largest_steps(const Model& model, const CacheLimits& limits,
                                       bool captures) {
  const std::vector<CacheGroupSpec>& groups = model.cache_groups();
  const int64_t index_topk = model.config().index_topk;
  std::vector<StepExtents> steps;
  if (captures) steps = CapturedSteps(groups, index_topk, limits).largest();
  const StepLimits most = step_limits(limits);
  steps.push_back(largest_step(groups, most));
  if (!model.id().whole()) {
    for (const int64_t tokens :
         {model.least_shared_tokens() - 1, tokens_of_largest_share(model.id(), most.tokens)}) {
      StepLimits fewer = most;
      fewer.tokens = tokens;
      if (tokens < most.tokens) steps.push_back(largest_step(groups, fewer));
    }
  }
  for (const CacheGroupSpec& group : groups) {
    StepLimits listed = step_limits(limits);
    listed.context = group.ratio * index_topk + group.ratio - 1;
    if (group.has_index && listed.context < limits.max_tokens)
      steps.push_back(largest_step(groups, listed));
  }
  return steps;
}

}  // namespace

SampleLayout sample_layout(const ModelConfig& config, const CacheLimits& limits) {
  return {limits.logits_rows(), config.vocab_size,
          limits.max_sequences * max_token_terms(config.vocab_size, limits.max_tokens),
          limits.drafter == DrafterKind::kNone ? 0 : limits.max_sequences * limits.max_drafts};
}

Workspace plan_workspace(const Model& model, const Context& context, const CacheLimits& limits,
                         int threads) {
  const ModelConfig& config = model.config();
  const bool host = context.device == nullptr;
  const DryContext dry(context);
  // Sizes of pools do not matter to a step: one page of each is enough.
  const ModelCache cache(config, context.numerics,
                         {.max_tokens = 1, .max_batch_tokens = 1, .drafter = limits.drafter},
                         unmapped_memory());
  Workspace plan{.logits = limits.logits_rows() * config.vocab_size *
                           static_cast<int64_t>(sizeof(float))};
  const auto count = [&plan](const StepScratch& taken) {
    plan.lists = std::max(plan.lists, taken.lists);
    plan.activations = std::max(plan.activations, taken.activations);
    plan.step = std::max(plan.step, taken.lists + taken.activations);
  };
  SymmetricMemory counted = counting_symmetric(model.id());
  const bool shares = !host && exchange_kind() == ExchangeKind::kPeer;
  Single rank(model.id(), shares ? &counted : nullptr);
  for (StepExtents step : largest_steps(model, limits, !host)) {
    step.enters = limits.drafter;
    count(dry_run(model, dry.context(), step, cache.layers(), &rank));
  }
  for (size_t half = 0; half < kSymmetricHalves; ++half)
    plan.symmetric[half] = counted.halves[half].peak_bytes();
  if (limits.drafter != DrafterKind::kNone) {
    const int64_t rows = draft_logits_rows(config, limits);
    const WeightView head = draft_head_shape(model);
    StepScratch draft =
        dry_run_draft(model, dry.context(), limits.max_sequences, rows / limits.max_sequences,
                      cache.drafter_layers(), limits.draft_head && !head.empty() ? &head : nullptr);
    // A device gets the lists of all passes at once.
    if (!host && limits.drafter == DrafterKind::kMtp)
      draft.lists *= std::max<int64_t>(1, limits.max_drafts);
    count(draft);
    plan.drafter = DraftBuffers::bytes(config, context.numerics, limits) +
                   (limits.draft_head ? DraftHead::bytes(model) : 0);
  }
  if (!host) plan.step = plan.lists + plan.activations;
  sample_nothing(dry.context(), limits.logits_rows(), config.vocab_size);
  plan.sampling = sample_layout(config, limits).bytes;
  plan.kernels = dry.kernel_bytes(threads);
  return plan;
}

}  // namespace dsv4
