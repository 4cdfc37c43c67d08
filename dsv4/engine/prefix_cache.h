// Beginnings of texts that later sequences continue instead of computing them again
// (docs/spec/serving.md 5). They live in the cache's own memory: pages that are shared and never
// written, and a copy of what the compressors still need.
//
//   checkpoint at P   the pages of the first P tokens (page_tables.h), and of each compressor with
//                     overlap the rows of tokens P - r .. P - 1: at P every open block is empty
//
// P is a multiple of step(), the least number of tokens that fills pages of every group. There are
// limits().checkpoints of them; a new one takes the place of the least recently used. Their pages
// count as free for the scheduler: evict() gives them back.
//
// Not here: checkpoints in host memory or on a disk.

#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "dsv4/cache/prefix_index.h"
#include "dsv4/engine/model_cache.h"
#include "dsv4/engine/runner.h"

namespace dsv4 {

class PrefixCache {
 public:
  PrefixCache(ModelCache& cache, Runner& runner);

  int64_t step() const { return index_.step(); }
  int64_t size() const { return static_cast<int64_t>(by_use_.size()); }

  // Length of the longest stored prefix of `ids`; 0: none. The salt separates texts that must not
  // be shared.
  int64_t match(std::string_view salt, std::span<const int32_t> ids) const;
  // An empty sequence begins with that prefix. Returns its length.
  int64_t attach(SeqId seq, std::string_view salt, std::span<const int32_t> ids);
  // Keeps a sequence of exactly these tokens, a multiple of step(), unless they are stored already.
  void store(SeqId seq, std::string_view salt, std::span<const int32_t> ids);
  // Gives up the least recently used checkpoint; false: there is none.
  bool evict();

 private:
  struct Checkpoint {
    PagePrefix pages;
    uint64_t last_use = 0;
  };
  // Rows of consecutive tokens in a compressor's ring, of one plane.
  struct Rows {
    std::byte* data = nullptr;  // of the sequence's slot
    int64_t kept = 0;           // offset in a checkpoint
    int64_t bytes = 0;
  };
  // Everything that a checkpoint at `tokens` keeps of the states of a slot.
  std::vector<Rows> rows_of(int64_t slot, int64_t tokens) const;
  void use(int place);

  ModelCache& cache_;
  Runner& runner_;
  PrefixIndex index_;
  std::vector<Checkpoint> checkpoints_;
  std::vector<int> free_;           // places without a checkpoint
  Buffer states_;                   // [checkpoints, bytes] U8
  std::map<uint64_t, int> by_use_;  // last_use -> place, least recently used first
  uint64_t num_uses_ = 0;
};

// Tokens that fill pages of every group: the least common multiple of their pages.
int64_t prefix_step(std::span<const CacheGroup> groups);
// Bytes that a checkpoint keeps of the compressors' states.
int64_t prefix_state_bytes(std::span<const StateLayout> states);

}  // namespace dsv4
