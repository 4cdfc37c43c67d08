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
  RequestPrefixes::State prefix;
  std::chrono::steady_clock::time_point submitted, first_run;
  RequestStats stats;

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  bool runs() const { return seq != SeqId{}; }
  bool scoring() const { return params.score_prompt && scored + 1 < length() - generated; }
  bool decoding() const { return generated > 0 && cached + 1 == length(); }
  bool before(const RequestState& other) const;  // in the order of the scheduler

  void advance(int32_t token);  // of the constraint
  // Masks the last row, from which the next token comes; true where the constraint has made it.
  bool restrict(SampleLists& lists);
};

}  // namespace dsv4
