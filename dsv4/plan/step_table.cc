#include "dsv4/plan/step_table.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "dsv4/base/error.h"
#include "dsv4/engine/device_weights.h"
#include "dsv4/engine/draft_head.h"
#include "dsv4/engine/model_cache.h"
#include "dsv4/model/dry_run.h"
#include "dsv4/plan/synthetic.h"
#if DSV4_CUDA
#include "dsv4/plan/imagined_gpu.h"
#endif

namespace dsv4 {
namespace {

// Collects calls; equal ones below the same caller share an entry.
class CallList final : public Observer {
 public:
  void observe(const OpCall& call) override {
    const size_t at = entry(
        {.depth = depth_, .op = call.op(), .impl = call.impl().name, .refusals = call.refusals()});
    ++calls_[at].calls;
    if (!call.impl().parts()) return;
    const size_t outer = std::exchange(caller_, at);
    ++depth_;
    call.run();
    --depth_;
    caller_ = outer;
  }

  std::vector<StepCalls> take() { return std::move(calls_); }

 private:
  static constexpr size_t kModel = ~size_t{0};  // the caller of depth 0

  // Entries of one caller follow it without a gap: a new one stands after the last of them.
  size_t entry(StepCalls wanted) {
    const auto same = [&](const StepCalls& c) {
      return c.depth == wanted.depth && c.op == wanted.op && c.impl == wanted.impl &&
             std::ranges::equal(c.refusals, wanted.refusals,
                                [](const Refusal& a, const Refusal& b) {
                                  return a.impl == b.impl && a.reason == b.reason;
                                });
    };
    size_t at = caller_ == kModel ? 0 : caller_ + 1;
    for (; at < calls_.size() && calls_[at].depth >= depth_; ++at)
      if (same(calls_[at])) return at;
    calls_.insert(calls_.begin() + static_cast<std::ptrdiff_t>(at), std::move(wanted));
    return at;
  }

  std::vector<StepCalls> calls_;
  size_t caller_ = kModel;
  int depth_ = 0;
};

// On a GPU the experts have the layout that its implementations read best; all tensors get a place.
Model model_of(const StepTableRequest& request, const Context& context) {
  Model model = synthetic_model(request.release, request.formats, 0, 1, 0, request.drafter);
  if (context.device == nullptr) return model;
  model.choose_layouts(context);
  redirect_tensors(model, place_tensors(model), unmapped_address(0));
  return model;
}

StepExtents extents_of(const Model& model, const StepTableRequest& request, int64_t tokens) {
  StepExtents extents =
      tokens <= kMostDecodeTokens
          ? decode_step(model.cache_groups(), tokens, request.context)
          : largest_step(model.cache_groups(), {.tokens = tokens,
                                                .sequences = 1,
                                                .context = std::max(tokens, request.context),
                                                .logits_rows = 1});
  extents.enters = request.drafter;
  return extents;
}

}  // namespace

std::vector<StepTable> step_tables(const StepTableRequest& request) {
  Context context{.numerics = request.numerics,
                  .need_batch_invariant = request.batch_invariant,
                  .choices = request.choices};
#if DSV4_CUDA
  const std::unique_ptr<Device> gpu = request.gpu.empty() ? nullptr : imagined_gpu(request.gpu);
  context.device = gpu.get();
#else
  if (!request.gpu.empty())
    fail(ErrorCode::kUnsupported,
         "this program has no implementations for a GPU: use the one of the cuda preset");
#endif
  const Model model = model_of(request, context);
  const ModelCache cache(model.config(), request.numerics,
                         {.max_tokens = 1, .max_batch_tokens = 1, .drafter = request.drafter},
                         unmapped_memory());
  const WeightView head = draft_head_shape(model);
  std::vector<StepTable> tables;
  for (const int64_t tokens : request.tokens) {
    CallList list;
    context.observer = &list;
    dry_run(model, context, extents_of(model, request, tokens), cache.layers());
    tables.push_back(
        {.tokens = tokens, .decode = tokens <= kMostDecodeTokens, .calls = list.take()});
    if (request.drafter == DrafterKind::kNone || !tables.back().decode) continue;
    const bool copied = context.device != nullptr && request.drafter == DrafterKind::kMtp;
    dry_run_draft(model, context, tokens, std::max<int64_t>(1, model.config().dspark.block_size),
                  cache.drafter_layers(), copied ? &head : nullptr);
    tables.push_back({.tokens = tokens, .decode = true, .draft = true, .calls = list.take()});
  }
  return tables;
}

}  // namespace dsv4
