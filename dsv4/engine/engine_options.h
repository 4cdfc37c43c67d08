// How an engine runs (engine.h): numerics, sizes, scheduling, stored prefixes.

#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dsv4/cache/unit_store.h"
#include "dsv4/engine/cache_plan.h"
#include "dsv4/engine/expert_trace.h"
#include "dsv4/engine/runner.h"
#include "dsv4/engine/scheduler.h"
#include "dsv4/engine/speculation.h"
#include "dsv4/model/model.h"

namespace dsv4 {

// Where drafts come from. kLookup: text that repeats text, and what a grammar forces. The others
// add a drafter of this kind (model/mtp.h, model/dspark.h), which the model must have loaded.
enum class Speculate : uint8_t { kOff, kLookup, kMtp, kDspark };
DrafterKind drafter_kind(Speculate speculate);
// With the drafter that the model has loaded; kLookup: it has none.
Speculate speculate_with_drafter(const Model& model);

struct EngineOptions {
  Numerics numerics = Numerics::kOfficial;
  bool deterministic = false;       // use only batch invariant implementations
  std::vector<ImplChoice> choices;  // tried before the order of the tables
  int64_t max_tokens = 4096;        // of one sequence at most: prompt and answer
  int max_sequences = 1;
  // Cache of all sequences together, at least max_tokens; 0: max_tokens for each of them, so that
  // no request is preempted.
  int64_t cache_tokens = 0;
  int64_t max_batch_tokens = 512;  // tokens of one step
  // Beside requests that decode, prompts get as many tokens of a step as are expected to fit this
  // time, and at least a few; 0: all that there is room for.
  std::chrono::milliseconds longest_step{0};
  int64_t long_prompt = SchedulerLimits{}.long_prompt;  // short prompts pass longer ones
  // Prefixes that later requests need not compute again (prefix_cache.h), each about
  // checkpoint_bytes() of cache_plan.h; 0: none.
  int prefix_checkpoints = 0;
  int64_t checkpoint_interval = 2048;  // tokens between checkpoints inside a long prompt
  // Checkpoints are also kept in host memory, of so many bytes, and in a folder
  // (cache/unit_store.h). 0 bytes: only in the cache itself. Wants prefix_checkpoints > 0.
  UnitStoreOptions tiers;
  // Gets what becomes stored in a tier, and what no longer is (cache/block_events.h); may be null.
  BlockEvents block_events;
  std::string model_identity;  // fingerprint.h; of the model's files, for units that are kept
  // How long a request that would begin with units on the disk waits for them.
  std::chrono::milliseconds longest_load{2000};
  // Tokens of prompts that a step can score (GenerateParams::score_prompt), a row of logits each;
  // 0: none, and requests that want it are refused.
  int64_t max_scored_tokens = 0;
  // Several tokens of an answer in a step, where they can be guessed (speculation.h).
  Speculate speculate = Speculate::kOff;
  int64_t draft_tokens = 0;  // of each round, 1 to kMaxDrafts; 0: as many as pay
  // Beside lookup, for tests; null: the model's where it is wanted.
  std::shared_ptr<Drafter> drafter;
  bool draft_head = false;     // the model's drafter reads a copy of the head (draft_head.h)
  RankOptions ranks;           // of a model that has several
  bool check_numbers = false;  // look at the output of every op (check_numbers.h)
  // Writes down the experts of every token, on the host and without check_numbers; null: not.
  std::shared_ptr<ExpertTrace> expert_trace;
};

// The context of its steps, without device and observer; it reads `options` as long as it is used.
Context step_context(const EngineOptions& options);

// Bytes of the cache that an engine with these options allocates. Throws what its constructor
// throws for options that do not fit the model.
int64_t cache_bytes(const Model& model, const EngineOptions& options);
int64_t cache_bytes(const ModelConfig& config, Numerics numerics, const CacheLimits& limits);

// Throws unless they agree with each other and with the model.
const EngineOptions& checked_options(const Model& model, const EngineOptions& options);

// What these options make of the cache.
CacheLimits cache_limits(const EngineOptions& options);

}  // namespace dsv4
