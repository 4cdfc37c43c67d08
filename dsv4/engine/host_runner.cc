#include "dsv4/engine/host_runner.h"

#include <algorithm>

#include "dsv4/base/error.h"
#include "dsv4/base/not_finite.h"
#include "dsv4/engine/check_numbers.h"
#include "dsv4/engine/workspace.h"

namespace dsv4 {

HostRunner::HostRunner(const Model& model, const Context& context, const CacheLimits& limits)
    : model_(model), context_(context) {
  context_.workspace = &scratch_;
  scratch_.reserve(plan_workspace(model, context, limits, 0).step);
}

void HostRunner::copy(std::span<const CopyPiece> pieces) {
  for (const CopyPiece& piece : pieces) std::copy_n(piece.from, piece.bytes, piece.to);
}

std::unique_ptr<Transfer> HostRunner::start_copy(std::span<const CopyPiece> pieces) {
  copy(pieces);
  return std::make_unique<FinishedTransfer>();
}

void HostRunner::forward(const ForwardBatch& batch, std::span<const LayerCache> caches,
                         const TensorView& logits, const DrafterStreams& drafter) {
  const Scratch::Scope scope(scratch_);
  const std::vector<CacheGroupSpec>& groups = model_.cache_groups();
  StepExtents extents = step_extents(groups, batch);
  extents.enters = drafter.streams.rank > 0;
  Step step = make_step(context_, model_.config(), groups, batch, extents, StepLists(scratch_),
                        scratch_, model_.id());
  step.ranks = ranks_;
  model_.forward(step, caches, logits, drafter);
}

void HostRunner::run_pass(const DraftChain& chain, size_t pass, const ForwardBatch& batch,
                          const TensorView& logits) {
  const Scratch::Scope scope(scratch_);
  const CacheGroupSpec& window = model_.cache_groups()[kWindowGroup];
  Step step = make_draft_step(context_, model_.config(), window, batch,
                              step_extents({&window, 1}, batch), StepLists(scratch_), scratch_);
  model_.draft(step, chain.cache, chain.before(pass), chain.after(pass, logits.dim(0)), logits);
}

std::vector<std::vector<int32_t>> HostRunner::draft(const DraftChain& chain) {
  std::vector<std::vector<int32_t>> ids;
  for (const ForwardBatch& batch : chain.passes) ids.emplace_back(batch.ids.size(), -1);
  try {
    for (size_t pass = 0; pass < ids.size(); ++pass) {
      ForwardBatch batch = chain.passes[pass];
      if (pass > 0) std::copy_n(ids[pass - 1].begin(), batch.ids.size(), batch.ids.begin());
      const TensorView logits = chain.logits.slice(0, 0, std::ssize(batch.ids));
      run_pass(chain, pass, batch, logits);
      require_finite_logits(logits);
      std::vector<uint64_t> steps;
      const std::vector<Sampled> drawn = sample(logits, chain.rows(pass, steps));
      for (size_t i = 0; i < drawn.size(); ++i) ids[pass][i] = drawn[i].id;
    }
  } catch (const NotFinite&) {  // an op met it, of whichever sequence
  }
  return ids;
}

std::vector<Sampled> HostRunner::sample(const ConstTensorView& logits, const SampleRows& rows) {
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

SampleRows DraftChain::rows(size_t pass, std::vector<uint64_t>& steps) const {
  const size_t n = passes[pass].ids.size();
  steps.assign(sampling.steps.begin(), sampling.steps.begin() + static_cast<std::ptrdiff_t>(n));
  for (uint64_t& step : steps) step += pass;
  SampleRows rows{.params = sampling.params.first(n), .steps = steps, .terms = sampling.terms};
  if (!sampling.term_begin.empty()) rows.term_begin = sampling.term_begin.first(n + 1);
  if (pass == 0) rows.mask = sampling.mask;
  return rows;
}

std::unique_ptr<Runner> make_runner(const Model& model, const Context& context,
                                    const CacheLimits& limits, const RankOptions& ranks) {
  if (!model.others().empty()) return make_ranks_runner(model, context, limits, ranks);
#if DSV4_CUDA
  if (context.device != nullptr) return make_device_runner(model, context, limits);
#endif
  DSV4_CHECK(context.device == nullptr, "this build runs on the {} only", "host");
  return std::make_unique<HostRunner>(model, context, limits);
}

}  // namespace dsv4
