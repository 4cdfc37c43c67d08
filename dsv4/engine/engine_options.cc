#include "dsv4/engine/engine_options.h"

#include <algorithm>

#include "dsv4/base/error.h"
#include "dsv4/engine/fingerprint.h"
#include "dsv4/engine/prefix_cache.h"

namespace dsv4 {

const EngineOptions& checked_options(const Model& model, const EngineOptions& options) {
  DSV4_CHECK(options.max_tokens >= 1 && options.max_sequences >= 1,
             "max_tokens={} max_sequences={}", options.max_tokens, options.max_sequences);
  DSV4_CHECK(options.max_batch_tokens >= options.max_sequences,
             "max_batch_tokens={} below max_sequences={}", options.max_batch_tokens,
             options.max_sequences);
  DSV4_CHECK(options.cache_tokens == 0 || options.cache_tokens >= options.max_tokens,
             "cache_tokens={} below max_tokens={}", options.cache_tokens, options.max_tokens);
  DSV4_CHECK(options.prefix_checkpoints >= 0 && options.checkpoint_interval >= 1,
             "prefix_checkpoints={} checkpoint_interval={}", options.prefix_checkpoints,
             options.checkpoint_interval);
  DSV4_CHECK(options.tiers.ram_bytes == 0 || options.prefix_checkpoints > 0,
             "{} bytes of host memory for prefixes of an engine without checkpoints",
             options.tiers.ram_bytes);
  DSV4_CHECK(options.tiers.folder.empty() ||
                 (options.tiers.ram_bytes > 0 && !options.model_identity.empty()),
             "a folder for prefixes, with {} bytes of host memory and the identity '{}'",
             options.tiers.ram_bytes, options.model_identity);
  DSV4_CHECK(options.max_scored_tokens >= 0, "max_scored_tokens={}", options.max_scored_tokens);
  DSV4_CHECK(options.draft_tokens >= 0 && options.draft_tokens <= kMaxDrafts,
             "draft_tokens={}, want 0 to {}", options.draft_tokens, kMaxDrafts);
  DSV4_CHECK(options.expert_trace == nullptr || !options.check_numbers,
             "{} observers of a step: a trace of experts and a check of numbers", 2);
  const DrafterKind drafter = drafter_kind(options.speculate);
  const std::optional<DrafterWeights>& loaded = model.weights().drafter;
  DSV4_CHECK(drafter == DrafterKind::kNone || (loaded.has_value() && loaded->kind == drafter),
             "drafts by {} of a model without", name(drafter));
  const int64_t block = model.config().dspark.block_size;
  if (drafter == DrafterKind::kDspark && options.draft_tokens > block)
    fail(ErrorCode::kBadInput, "{} drafts of each round: the model's DSpark block guesses {}",
         options.draft_tokens, block);
  if (options.numerics == Numerics::kOfficial) check_official_numerics(model.config());
  return options;
}

DrafterKind drafter_kind(Speculate speculate) {
  return speculate == Speculate::kMtp      ? DrafterKind::kMtp
         : speculate == Speculate::kDspark ? DrafterKind::kDspark
                                           : DrafterKind::kNone;
}

Speculate speculate_with_drafter(const Model& model) {
  const std::optional<DrafterWeights>& drafter = model.weights().drafter;
  if (!drafter) return Speculate::kLookup;
  return drafter->kind == DrafterKind::kMtp ? Speculate::kMtp : Speculate::kDspark;
}

CacheLimits cache_limits(const EngineOptions& options) {
  const int64_t drafts = options.speculate == Speculate::kOff ? 0
                         : options.draft_tokens > 0           ? options.draft_tokens
                                                              : kMaxDrafts;
  const int64_t decoded = std::min(options.max_sequences * (1 + drafts), options.max_batch_tokens);
  return {.max_tokens = options.max_tokens,
          .max_sequences = options.max_sequences,
          .max_batch_tokens = options.max_batch_tokens,
          .max_logits_rows = decoded + options.max_scored_tokens,
          .cache_tokens = options.cache_tokens,
          .max_drafts = drafts,
          .checkpoints = options.prefix_checkpoints,
          .drafter = drafter_kind(options.speculate),
          .draft_head = options.draft_head};
}

Context step_context(const EngineOptions& options) {
  return {.numerics = options.numerics,
          .need_batch_invariant = options.deterministic,
          .choices = options.choices};
}

int64_t cache_bytes(const Model& model, const EngineOptions& options) {
  const Numerics numerics = checked_options(model, options).numerics;
  return cache_bytes(model.config(), numerics, cache_limits(options));
}

int64_t cache_bytes(const ModelConfig& config, Numerics numerics, const CacheLimits& limits) {
  const CachePlan plan = plan_cache(config, numerics, limits).plan;
  return plan.bytes() + limits.checkpoints * prefix_state_bytes(plan);
}

}  // namespace dsv4
