// What a caller of the engine gives with a request and gets for it (engine.h).

#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dsv4/engine/sample_lists.h"
#include "dsv4/engine/speculation.h"
#include "dsv4/engine/token_constraint.h"
#include "dsv4/engine/token_terms.h"

namespace dsv4 {

struct GenerateParams {
  SamplingParams sampling;
  int64_t max_new_tokens = 256;
  int64_t min_new_tokens = 0;  // before them, no token of `stop` is chosen
  std::vector<int32_t> stop;   // ending the answer; not delivered
  std::vector<LogitBias> logit_bias;
  std::shared_ptr<TokenConstraint> constraint;  // null: every token may follow
  std::string salt;  // requests of different salts share no stored prefix
  int priority = 0;  // a request of a higher one is preempted after those of lower ones
  // At the next step after it the request ends with the tokens that it has (Finish::kLength), in
  // the queue too.
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  // Tokens of the prompt after which other texts may differ, as the end of a system prompt: places
  // of checkpoints, besides those of EngineOptions.
  std::vector<int64_t> forks;
  // The sink gets the log-probability of every token of the prompt but the first. No stored prefix
  // is used, since the logits are needed.
  bool score_prompt = false;
  // The answer as the caller expects it, for drafts (speculation.h): it changes no token.
  std::vector<int32_t> prediction;
  bool speculate = true;  // where the engine does
};

// kStop: also where the constraint has ended. kConstraintFailed: the constraint cannot say what may
// follow.
enum class Finish : uint8_t { kStop, kLength, kCancelled, kConstraintFailed };
const char* name(Finish finish);

enum class RequestId : uint64_t {};

// What a request has cost, when it finishes.
struct RequestStats {
  double queue_seconds = 0;    // from submit() until it first ran
  double prefill_seconds = 0;  // from then until its first token
  int64_t prompt_tokens = 0, answer_tokens = 0;
  // Tokens of the prompt that the cache had when it first ran, and how many of them units brought.
  int64_t cached_tokens = 0, ram_tokens = 0, disk_tokens = 0;
  int preemptions = 0;
  DraftCounts drafts;
};

// Called at the end of step(), on the thread that called step(), when the engine's state is
// consistent: a sink may submit and cancel. An exception of a sink leaves step(); the other sinks
// do not get the tokens of that step, but the engine can continue.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void on_token(RequestId id, const Sampled& token) = 0;
  virtual void on_finish(RequestId id, Finish why) = 0;
  virtual void on_stats(RequestId, const RequestStats&) {}  // just before on_finish()
  // Once, before the first token: how many tokens of the prompt were in the cache already.
  virtual void on_start(RequestId, int64_t /*cached_tokens*/) {}
  // What became of the drafts of a step, before the tokens that it gave.
  virtual void on_drafts(RequestId, const DraftCounts&) {}
  // With GenerateParams::score_prompt, before the first token: of the prompt's tokens, in order.
  virtual void on_prompt_token(RequestId, const Sampled& /*token*/) {}
};

}  // namespace dsv4
