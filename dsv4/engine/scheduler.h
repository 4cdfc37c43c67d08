// What runs in a step: a pure function of the requests, their lengths and the free pages.
//
//   1. Every decoding request gets its next token, in order. When pages run out, the last running
//      request is preempted: pages that only it has go back, and it waits.
//   2. Drafts of requests that decode get at most half of what is left of the token budget. Pages
//      are not kept for them: they are computed where pages are left.
//   3. What is left of the token budget goes to prompts, in order, in chunks as long as budget and
//      pages allow. Beside requests that decode, prompts get at most max_prompt_tokens. Short
//      prompts after a long one, those that wait included, pass it with up to an eighth of that.
//   4. Waiting requests are admitted in order, as long as a slot and budget are left and
//      the pages suffice for what all running requests and the new one are expected to need: their
//      tokens and the next `lookahead` tokens of their answers. A request that would run alone is
//      always admitted.
//
// A preempted request later computes its prompt and its answer so far again, in any chunks, which
// gives the bits that it had. The first running request is never preempted, so it finishes, and one
// sequence alone must fit the cache. Where the pools hold the longest sequence for every slot, no
// request is ever preempted or waits for pages.
//
// Not here: the order, which is the caller's (Engine: priority, then arrival), deadlines, and
// fairness between clients.

#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "dsv4/cache/page_tables.h"

namespace dsv4 {

struct ScheduledRequest {
  int64_t tokens = 0;  // known: the prompt and the answer so far
  // Tokens in the cache. While it waits: tokens of the stored prefix with which it would begin. Its
  // pages count among the free ones unless running requests share them.
  int64_t cached = 0;
  int64_t answer_left = 0;  // tokens that the answer may still get
  // Everything but the newest token of its answer is cached. Otherwise it is computing its prompt,
  // or after a preemption all its tokens again, in chunks.
  bool decoding = false;
  int64_t drafts = 0;   // tokens after its next one that it wants to compute in the same step
  int64_t stop_at = 0;  // a chunk that begins before this token ends there at the latest; 0: none
};

struct SchedulerState {
  std::span<const ScheduledRequest> requests;  // in order
  size_t num_running = 0;                      // the first so many run, the others wait
  std::span<const CacheGroup> groups;
  std::span<const int64_t> free_pages;  // [group] those that only stored prefixes hold included
  // Pages of group g that no running request before it shares with running request i: those that go
  // back when i is preempted after all that follow it. Null: no pages are shared.
  std::function<int64_t(size_t i, size_t g)> own_pages;
};

struct SchedulerLimits {
  int64_t max_batch_tokens = 0;  // of one step, at least one for every sequence
  int64_t max_prompt_tokens =
      0;  // of a step in which a request decodes; 0: as many as there is room
  int max_sequences = 1;
  int64_t lookahead = 256;
  int64_t long_prompt = 4096;  // a prompt with more tokens than these left is long
  // A chunk ends with its prompt, or at a multiple of these tokens unless that leaves out more than
  // 1/32 of it.
  int64_t chunk_step = 1;
};

struct Schedule {
  struct Chunk {
    size_t request = 0;
    int64_t count = 0;   // of its next tokens
    int64_t drafts = 0;  // and so many drafts after them
  };
  std::vector<Chunk> chunks;  // decoding requests first
  // The first so many requests run in this step; those that ran before and do not now are
  // preempted.
  size_t num_running = 0;
};

// Throws kResource when not even the first request alone fits the cache.
Schedule schedule(const SchedulerState& state, const SchedulerLimits& limits);

}  // namespace dsv4
