// How much of prompts a step computes beside requests that decode: as much as is expected to fit
// EngineOptions::longest_step, by the steps before (step_time.h). With experts in host memory a
// step with prompts brings them from there, however few tokens it has: where a small one cannot
// fit, all that there is room for is computed at once.

#include "dsv4/engine/engine.h"

namespace dsv4 {

int64_t Engine::max_prompt_tokens(std::span<const ScheduledRequest> requests) const {
  constexpr int64_t kLeast = 32;  // a small step costs nearly as much
  if (options_.longest_step.count() == 0) return 0;
  const double seconds = std::chrono::duration<double>(options_.longest_step).count();
  int64_t others = 0;  // tokens of the step that are not of prompts
  for (const ScheduledRequest& request : requests)
    others += request.decoding ? 1 + request.drafts : 0;
  const int64_t least = others + kLeast, most = std::max(least, options_.max_batch_tokens);
  const int64_t of_step = model_.expert_store() != nullptr
                              ? prompt_time_.piece_within(seconds, least, most)
                              : step_time_.tokens_within(seconds, least, most);
  return of_step - others;
}

// Beside requests that decode, as many as fit the time of a step.
int64_t Engine::max_scored_tokens(const Schedule& plan, std::span<Request* const> running) const {
  constexpr int64_t kLeast = 8;
  int64_t others = 0;
  bool decodes = false;
  for (const Schedule::Chunk& chunk : plan.chunks) {
    const Request& request = *running[chunk.request];
    decodes |= request.decoding();
    others += request.scoring() ? 0 : chunk.count;
  }
  if (!decodes || options_.longest_step.count() == 0) return options_.max_scored_tokens;
  const double seconds = std::chrono::duration<double>(options_.longest_step).count();
  return step_time_.rows_within(seconds, others, kLeast, options_.max_scored_tokens);
}

}  // namespace dsv4
