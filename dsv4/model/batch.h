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

// The drafter's part of a step that enters its tokens (drafter.h).
struct DrafterStreams {
  // [>= T + runs, m, D]: X of each token of the step; what follows is temporary
  TensorView streams;
  // [slots, m, D]: X of the newest token of each sequence before the step, by its state slot
  ConstTensorView pending;
};

}  // namespace dsv4
