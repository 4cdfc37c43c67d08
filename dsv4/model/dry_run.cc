#include "dsv4/model/dry_run.h"

#include <algorithm>

#include "dsv4/base/bits.h"
#include "dsv4/comm/communicator.h"

namespace dsv4 {

StepExtents largest_step(std::span<const CacheGroupSpec> groups, const StepLimits& limits) {
  const int64_t tokens = std::min(limits.tokens, limits.sequences * limits.context);
  const int64_t runs = std::min(limits.sequences, tokens);
  StepExtents extents{
      .tokens = tokens, .runs = runs, .logits_rows = std::min(limits.logits_rows, tokens)};
  for (const CacheGroupSpec& group : groups) {
    const int64_t visible = limits.context / group.ratio;
    // A run of c tokens closes at most ceil(c / r) entries: the total is largest when every run has
    // one token more than a multiple of r.
    const int64_t closed = std::min(runs + (tokens - runs) / group.ratio, runs * visible);
    if (group.keep_tokens > 0) {
      extents.groups.push_back({.closed = closed, .visible = std::min(group.keep_tokens, visible)});
    } else {
      extents.groups.push_back(
          {.closed = closed,
           .visible = visible,
           .pages = std::max<int64_t>(1, ceil_div(visible, group.page_entries))});
    }
  }
  return extents;
}

StepExtents decode_step(std::span<const CacheGroupSpec> groups, int64_t tokens, int64_t context) {
  return largest_step(
      groups, {.tokens = tokens, .sequences = tokens, .context = context, .logits_rows = tokens});
}

namespace {

// [rows, m, D] without memory
TensorView unmapped_streams(const Step& step, int64_t rows) {
  return {TensorMeta::contiguous(step.act, {rows, step.config.hc_mult, step.config.hidden_size}),
          unmapped_address(0)};
}

}  // namespace

StepScratch dry_run(const Model& model, const Context& given, const StepExtents& extents,
                    std::span<const LayerCache> caches, Communicator* ranks) {
  Scratch lists = Scratch::counting(), scratch = Scratch::counting();
  Context context = given;
  context.workspace = &scratch;
  Step step = make_step(context, model.config(), model.cache_groups(), {}, extents,
                        StepLists(lists), scratch, model.id());
  Single alone(model.id());
  if (!model.id().whole()) step.ranks = ranks != nullptr ? ranks : &alone;
  const TensorMeta logits =
      TensorMeta::contiguous(DType::kF32, {extents.logits_rows, model.config().vocab_size});
  DrafterStreams drafter;
  if (extents.enters == DrafterKind::kMtp) {
    drafter.streams = unmapped_streams(step, extents.tokens + extents.runs);
    drafter.pending = unmapped_streams(step, extents.runs);
  }
  model.forward(step, caches, {logits, unmapped_address(0)}, drafter);
  return {.lists = lists.peak_bytes(), .activations = scratch.peak_bytes()};
}

StepScratch dry_run_draft(const Model& model, const Context& given, int64_t sequences,
                          int64_t guesses, std::span<const LayerCache> caches,
                          const WeightView* head) {
  Scratch lists = Scratch::counting(), scratch = Scratch::counting();
  Context context = given;
  context.workspace = &scratch;
  const ModelConfig& m = model.config();
  Single alone(model.id());
  Communicator* const ranks = model.id().whole() ? nullptr : &alone;
  const std::span<const CacheGroupSpec> window =
      std::span(model.cache_groups()).subspan(kWindowGroup, 1);
  const auto tensor = [](DType dtype, std::initializer_list<int64_t> shape) {
    return TensorView(TensorMeta::contiguous(dtype, shape), unmapped_address(0));
  };
  if (model.weights().drafter->kind == DrafterKind::kMtp) {
    const StepExtents extents = decode_step(window, sequences, m.max_positions);
    Step step = make_draft_step(context, m, window[0], {}, extents, StepLists(lists), scratch);
    step.draft_head = head, step.ranks = ranks;
    const TensorView streams = unmapped_streams(step, sequences);
    model.draft(step, caches[0], streams, streams, tensor(DType::kF32, {sequences, m.vocab_size}));
  } else {
    const StepExtents extents = block_extents(m, sequences, guesses);
    const int64_t n = extents.logits_rows;
    Step step =
        make_block_step(context, m, window[0], {}, extents, StepLists(lists), scratch, model.id());
    step.draft_head = head, step.ranks = ranks;
    const BlockGuesses out{.hidden = tensor(step.act, {n, m.hidden_size}),
                           .logits = tensor(DType::kF32, {n, m.vocab_size}),
                           .before = tensor(step.act, {n, m.dspark.markov_rank})};
    model.draft_block(step, caches, out);
    for (int64_t guess = 0; guess < guesses; ++guess)
      model.guess_after(step, step.drafter.newest,
                        out.rows(guess * sequences, (guess + 1) * sequences));
    model.confidences(step, out, tensor(DType::kF32, {n, 1}));
  }
  return {.lists = lists.peak_bytes(), .activations = scratch.peak_bytes()};
}

}  // namespace dsv4
