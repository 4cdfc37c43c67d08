// The input of one forward step: tokens of several sequences and the pages of their caches.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/ops/parts/compressor/compressor.h"
#include "dsv4/ops/pools.h"

namespace dsv4 {

// Consecutive tokens of one sequence inside the batch.
struct SequenceRun {
  int64_t first = 0;     // index of its first token in ForwardBatch::ids
  int64_t count = 0;     // number of tokens, >= 1
  int64_t position = 0;  // absolute position of the first
  int32_t slot = 0;      // row of the state tensors
  // Where DSpark's block goes that it guesses at present (dspark.h): the cache row of its first
  // token, in the pools of its stages; the others follow.
  int32_t block_row = 0;
  // [cache group] page tables: logical entry e lies in page table[e / page_entries]. Room for the
  // new tokens is there.
  std::vector<std::span<const int32_t>> pages;
};

struct ForwardBatch {
  std::vector<int32_t> ids;          // [T], each in [0, V)
  std::vector<SequenceRun> runs;     // cover ids in order, without gaps
  std::vector<int32_t> logits_rows;  // indices into ids whose logits are wanted, in output order
  std::vector<int32_t> before;  // [T] only in a draft: the row of each token in the given streams
};

// Throws kBadInput "token id 97 at position 1 is outside [0, 97)". For ids from outside, before
// they are in a batch.
inline void check_token_ids(std::span<const int32_t> ids, int64_t vocab) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab)
      fail(ErrorCode::kBadInput, "token id {} at position {} is outside [0, {})", ids[i], i, vocab);
  }
}

// One layer's cache, shared by all sequences. Each sequence has its own pages and its own slot.
struct LayerCache {
  KvPool window;          // a row per token of the last W
  KvPool entries;         // CSA, HCA: a row per compressed entry
  IndexPool keys;         // CSA: same page table as entries
  StatePool state;        // CSA, HCA
  StatePool index_state;  // CSA
};

// MTP's part of a step that enters its tokens (mtp.h).
struct DrafterStreams {
  // [>= T + runs, m, D]: X of each token of the step; what follows is temporary
  TensorView streams;
  // [slots, m, D]: X of the newest token of each sequence before the step, by its state slot
  ConstTensorView pending;
};

// What DSpark makes of the blocks of a step (dspark.h): n rows, guess 0 of every block, then guess
// 1 of every block, and so on.
struct BlockGuesses {
  TensorView hidden;  // [n, D]: h, in the dtype of activations
  TensorView logits;  // [n, V] f32
  TensorView before;  // [n, R]: markov_w1 of the token before the guess, in the same dtype

  BlockGuesses rows(int64_t begin, int64_t end) const {
    return {hidden.slice(0, begin, end), logits.slice(0, begin, end), before.slice(0, begin, end)};
  }
};

}  // namespace dsv4
