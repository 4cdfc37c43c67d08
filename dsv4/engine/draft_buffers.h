// Memory of a drafter beside the steps' scratch, for all sequences at once.

#pragma once

#include "dsv4/engine/cache_plan.h"
#include "dsv4/model/batch.h"
#include "dsv4/ops/op.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {

// Where a round's guesses are computed.
struct DraftViews {
  TensorView chain[2];  // MTP: X of the guesses of a pass [max_sequences, m, D], by turns
  // [rows, V] f32: of a pass of MTP a row of each sequence, of DSpark one of each guess.
  TensorView logits;
  TensorView hidden, before;  // of DSpark (BlockGuesses)
};

class DraftBuffers {
 public:
  DraftBuffers(const ModelConfig& config, Numerics numerics, const CacheLimits& limits,
               Memory& memory);
  // What they take.
  static int64_t bytes(const ModelConfig& config, Numerics numerics, const CacheLimits& limits);

  // MTP: X of the tokens of the latest step [>= T + runs, m, D].
  TensorView streams() const { return streams_; }
  TensorView logits() const { return logits_; }
  DraftViews views() const { return {{chain_[0], chain_[1]}, logits_, hidden_, before_}; }

 private:
  Buffer streams_, chain_[2], logits_, hidden_, before_;
};

// Rows of logits of the guesses of one round.
int64_t draft_logits_rows(const ModelConfig& config, const CacheLimits& limits);

}  // namespace dsv4
