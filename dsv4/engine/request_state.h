// A request inside the engine, from submit() until it has finished.

#pragma once

#include "dsv4/cache/page_tables.h"
#include "dsv4/engine/request.h"
#include "dsv4/engine/request_prefixes.h"
#include "dsv4/engine/sample_lists.h"

namespace dsv4 {

struct RequestState {
  RequestId id{};
  std::vector<int32_t> tokens;  // the prompt and the answer so far
  GenerateParams params;
  TokenSink* sink = nullptr;
  TokenTerms terms;
  TokenConstraint::State state = 0;  // of params.constraint
  bool blocked = false;              // the constraint has failed
  SeqId seq{};                       // while it runs; RequestPrefixes opens and closes it
  int64_t cached = 0;                // tokens in the cache: what `seq` has committed
  bool started = false;
  int64_t generated = 0;
  int64_t scored = 0;  // tokens of the prompt that the sink has, with score_prompt
  bool cancelled = false;
  int64_t overtaken = 0;  // times that a later request began while this one waited
  RequestPrefixes::State prefix;
  std::chrono::steady_clock::time_point submitted, first_run;
  RequestStats stats;
  DraftState draft_state;
  Round round;  // of the step that is planned or runs

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  bool runs() const { return seq != SeqId{}; }
  bool scoring() const { return params.score_prompt && scored + 1 < length() - generated; }
  bool decoding() const { return generated > 0 && cached + 1 == length(); }
  bool before(const RequestState& other) const;  // in the order of the scheduler

  void advance(int32_t token);  // of the constraint
  // Masks the last row of `lists`, which is this row of the round.
  void restrict(SampleLists& lists, size_t row);

  // These follow the constraint through the rows of a round (Round::rows). The first row is the
  // next token's; a further one comes after a draft. False where the constraint fails or ends.
  void begin_rows();
  bool add_row(int32_t draft);
  bool make_mask(size_t row, size_t words);
  void fail_row(size_t row);
};

}  // namespace dsv4
