// Memory of a drafter beside the steps' scratch, for all sequences at once.

#pragma once

#include "dsv4/engine/cache_plan.h"
#include "dsv4/engine/draft_head.h"
#include "dsv4/model/batch.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {

class DraftBuffers {
 public:
  DraftBuffers(const Model& model, Numerics numerics, const CacheLimits& limits, Memory& memory);
  // What they take.
  static int64_t bytes(const Model& model, Numerics numerics, const CacheLimits& limits);

  // MTP: X of the tokens of the latest step [>= T + runs, m, D], and of the guesses of a pass
  // [max_sequences, m, D], by turns.
  TensorView streams() const { return streams_; }
  TensorView chain(size_t pass) const { return chain_[pass % 2]; }
  // [rows, V] f32: of a pass of MTP a row of each sequence, of DSpark one of each guess.
  TensorView logits() const { return logits_; }
  // DSpark's
  BlockGuesses block() const { return {hidden_, logits_, before_}; }
  // Step::draft_head
  const WeightView* head() const { return head_.view().empty() ? nullptr : &head_.view(); }

 private:
  Buffer streams_, chain_[2], logits_, hidden_, before_;
  DraftHead head_;
};

// Rows of logits of the guesses of one round.
int64_t draft_logits_rows(const ModelConfig& config, const CacheLimits& limits);

}  // namespace dsv4
