#include "dsv4/engine/host_runner.h"

#include <algorithm>
#include <cmath>

#include "dsv4/base/error.h"
#include "dsv4/base/not_finite.h"
#include "dsv4/engine/check_numbers.h"
#include "dsv4/engine/workspace.h"

namespace dsv4 {

HostRunner::HostRunner(const Model& model, const Context& context, const CacheLimits& limits)
    : model_(model), context_(context) {
  context_.workspace = &scratch_;
  scratch_.reserve(plan_workspace(model, context, limits, 0).step);
  if (limits.draft_head) draft_head_ = DraftHead(model, host_memory());
  stats_.rank = model.id().rank;
  stats_.weight_bytes = model.weight_bytes();
}

std::vector<RankStats> HostRunner::rank_stats() {
  RankStats stats = stats_;
  stats.wait_seconds = static_cast<double>(exchanges_.nanoseconds) / 1e9;
  stats.received_bytes = exchanges_.received_bytes;
  stats.workspace_bytes = scratch_.reserved_bytes();
  return {stats};
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
  const StepTimer timer(stats_);
  const Scratch::Scope scope(scratch_);
  const std::vector<CacheGroupSpec>& groups = model_.cache_groups();
  StepExtents extents = step_extents(groups, batch);
  extents.enters = drafter_of(model_, caches);
  Step step = make_step(context_, model_.config(), groups, batch, extents, StepLists(scratch_),
                        scratch_, model_.id());
  step.ranks = ranks();
  model_.forward(step, caches, logits, drafter);
}

void HostRunner::draw_all(const DraftChain& chain, const std::function<void(size_t)>& compute,
                          Ids& ids) {
  const int64_t runs = std::ssize(chain.passes[0].runs);
  for (size_t guess = 0; guess < chain.guesses(); ++guess) {
    compute(guess);
    const TensorView logits = chain.logits(guess, runs).slice(0, 0, chain.sequences[guess]);
    require_finite_logits(logits);
    std::vector<uint64_t> steps;
    const std::vector<Sampled> drawn = sample(logits, chain.rows(guess, steps));
    for (size_t i = 0; i < drawn.size(); ++i) ids[guess][i] = drawn[i].id;
  }
}

void HostRunner::draft_by_passes(const DraftChain& chain, Ids& ids) {
  const CacheGroupSpec& window = model_.cache_groups()[kWindowGroup];
  const auto run_pass = [&](size_t pass) {
    ForwardBatch batch = chain.passes[pass];
    if (pass > 0) std::copy_n(ids[pass - 1].begin(), batch.ids.size(), batch.ids.begin());
    const Scratch::Scope scope(scratch_);
    Step step = make_draft_step(context_, model_.config(), window, batch,
                                step_extents({&window, 1}, batch), StepLists(scratch_), scratch_);
    step.draft_head = draft_head_.get(), step.ranks = ranks();
    const int64_t rows = chain.sequences[pass];
    model_.draft(step, chain.caches[0], chain.before(pass), chain.after(pass, rows),
                 chain.logits(pass, rows));
  };
  draw_all(chain, run_pass, ids);
}

void HostRunner::draft_by_block(const DraftChain& chain, Drafted& drafted) {
  const ForwardBatch& batch = chain.passes[0];
  const int64_t runs = std::ssize(batch.runs), guesses = std::ssize(chain.sequences);
  const Scratch::Scope scope(scratch_);
  Step step = make_block_step(context_, model_.config(), model_.cache_groups()[kWindowGroup], batch,
                              block_extents(model_.config(), runs, guesses), StepLists(scratch_),
                              scratch_, model_.id());
  step.draft_head = draft_head_.get(), step.ranks = ranks();
  model_.draft_block(step, chain.caches, chain.block_rows(runs));
  // Every sequence has a row of each guess, those that do not want it the id of padding.
  const Buffer before(DType::kI32, {runs});
  std::copy_n(step.drafter.newest.as<int32_t>(), runs, before.as<int32_t>());
  const auto follow = [&](size_t guess) {
    if (guess > 0) {
      const std::vector<int32_t>& drawn = drafted.ids[guess - 1];
      std::fill_n(std::copy(drawn.begin(), drawn.end(), before.as<int32_t>()),
                  runs - std::ssize(drawn), 0);
    }
    model_.guess_after(step, before, chain.block_rows(guess, runs));
  };
  draw_all(chain, follow, drafted.ids);
  const Buffer confidences(DType::kF32, {runs * guesses, 1});
  model_.confidences(step, chain.block_rows(runs), confidences);
  for (int64_t guess = 0; guess < guesses; ++guess) {
    std::vector<float>& chances = drafted.chances.emplace_back();
    for (int64_t i = 0; i < chain.sequences[static_cast<size_t>(guess)]; ++i)
      chances.push_back(chance_of(confidences.as<float>()[guess * runs + i]));
  }
}

// Where all ranks compute the same they meet the same numbers, and end their drafts together here.
// One that met it alone finds the others at another exchange, which ends the group.
void HostRunner::end_drafts() {
  const int world = ranks_->id().world;
  const Buffer nothing(DType::kI32, {1, world});
  const ColumnEnds ends = column_ends(world, world, 1);
  const Gathered one[] = {{nothing, ends}};
  ranks_->gather(one, {"drafts that ended at a number that is not finite"});
}

Drafted HostRunner::draft(const DraftChain& chain) {
  const StepTimer timer(stats_, 0);
  Drafted drafted;
  for (const int64_t n : chain.sequences) drafted.ids.emplace_back(static_cast<size_t>(n), -1);
  try {
    chain.block() ? draft_by_block(chain, drafted) : draft_by_passes(chain, drafted.ids);
  } catch (const NotFinite&) {  // an op met it, of whichever sequence
    if (ranks_) end_drafts();
  }
  return drafted;
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

SampleRows DraftChain::rows(size_t guess, std::vector<uint64_t>& steps) const {
  const auto n = static_cast<size_t>(sequences[guess]);
  steps.assign(sampling.steps.begin(), sampling.steps.begin() + static_cast<std::ptrdiff_t>(n));
  for (uint64_t& step : steps) step += guess;
  SampleRows rows{.params = sampling.params.first(n), .steps = steps, .terms = sampling.terms};
  if (!sampling.term_begin.empty()) rows.term_begin = sampling.term_begin.first(n + 1);
  if (guess == 0) rows.mask = sampling.mask;
  return rows;
}

float chance_of(float confidence) {
  return 1.f / (1.f + std::exp(-confidence));
}

DrafterKind drafter_of(const Model& model, std::span<const LayerCache> caches) {
  return caches.size() == model.schedule().size() ? DrafterKind::kNone
                                                  : model.weights().drafter->kind;
}

std::unique_ptr<Runner> make_runner(const Model& model, const Context& context,
                                    const CacheLimits& limits, const RankOptions& ranks) {
  if (model.processes() != nullptr) return make_processes_runner(model, context, limits, ranks);
  if (!model.others().empty()) return make_ranks_runner(model, context, limits, ranks);
#if DSV4_CUDA
  if (context.device != nullptr)
    return make_device_runner(model, context, limits, nullptr, ranks.alone);
#endif
  DSV4_CHECK(context.device == nullptr, "this build runs on the {} only", "host");
  return std::make_unique<HostRunner>(model, context, limits);
}

}  // namespace dsv4
