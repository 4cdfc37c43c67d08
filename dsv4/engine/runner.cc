#include "dsv4/engine/runner.h"

#include <algorithm>

#include "dsv4/base/error.h"
#include "dsv4/engine/workspace.h"

namespace dsv4 {
namespace {

class FinishedTransfer final : public Transfer {
 public:
  bool done() override { return true; }
  void wait() override {}
};

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
  Memory& staging() override { return host_memory(); }
  void copy(std::span<const CopyPiece> pieces) override {
    for (const CopyPiece& piece : pieces) std::copy_n(piece.from, piece.bytes, piece.to);
  }
  std::unique_ptr<Transfer> start_copy(std::span<const CopyPiece> pieces) override {
    copy(pieces);
    return std::make_unique<FinishedTransfer>();
  }
  void forward(const ForwardBatch& batch, std::span<const LayerCache> caches,
               const TensorView& logits, const DrafterStreams& drafter) override {
    const Scratch::Scope scope(scratch_);
    const std::vector<CacheGroupSpec>& groups = model_.cache_groups();
    StepExtents extents = step_extents(groups, batch);
    extents.enters = drafter.streams.rank > 0;
    Step step =
        make_step(context_, model_.config(), groups, batch, extents, StepLists(scratch_), scratch_);
    model_.forward(step, caches, logits, drafter);
  }
  void draft(const ForwardBatch& batch, const LayerCache& cache, const ConstTensorView& before,
             const TensorView& streams, const TensorView& logits) override {
    const Scratch::Scope scope(scratch_);
    const CacheGroupSpec& window = model_.cache_groups()[kWindowGroup];
    Step step = make_draft_step(context_, model_.config(), window, batch,
                                step_extents({&window, 1}, batch), StepLists(scratch_), scratch_);
    model_.draft(step, cache, before, streams, logits);
  }

  std::vector<Sampled> sample(const ConstTensorView& logits, const SampleRows& rows) override {
    const int64_t n = rows.count(), top = rows.most_top_logprobs();
    const Buffer ids(DType::kI32, {n}), logprobs(DType::kF32, {n});
    const Buffer top_ids(DType::kI32, {n, top}), top_logprobs(DType::kF32, {n, top});
    SampleArgs args{.logits = logits,
                    .params = rows.params,
                    .steps = rows.steps,
                    .ids = ids,
                    .logprobs = logprobs,
                    .terms = rows.terms,
                    .term_begin = rows.term_begin};
    args.mask = rows.mask_view(reinterpret_cast<const std::byte*>(rows.mask.data()));
    if (top > 0) args.top_ids = top_ids, args.top_logprobs = top_logprobs;
    dsv4::sample(context_, args);
    return sampled_of(rows, ids.as<int32_t>(), logprobs.as<float>(), top_ids.as<int32_t>(),
                      top_logprobs.as<float>());
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
