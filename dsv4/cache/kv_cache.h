// Paged cache of all sequences: memory, page tables, compressor states. Pure bookkeeping, no
// kernels; it knows groups of pools, not the model.
//
//   group   pools whose entries appear at the same rate, so that one page table serves them all:
//           window tokens (1 token an entry, only the last W kept), CSA entries and indexer keys
//           (4 tokens an entry), HCA entries (128)
//   pool    one tensor [num_pages, page_items] of a group: one layer's rows
//   state   one tensor [max_sequences, floats]: one compressor's newest tokens, a slot per sequence
//
// A sequence of n tokens owns page ceil-wise for entries 0 .. n / tokens_per_entry - 1. Pages of
// the window group are given back as they fall out of the window; their table entry becomes -1.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dsv4/cache/page_pool.h"
#include "dsv4/formats/state_layout.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {

struct CachePlan {
  struct Group {
    int tokens_per_entry = 1;
    int page_entries = 64;
    int64_t num_pages = 0;
    int64_t keep_tokens = 0;  // 0: all; W: pages wholly older than the last W tokens are given back
  };
  struct Pool {
    int group = 0;
    DType dtype = DType::kU8;
    int64_t page_items = 0;
  };
  std::vector<Group> groups;
  std::vector<Pool> pools;
  std::vector<StateLayout> states;
  int max_sequences = 1;

  int64_t bytes() const;  // of everything the cache will own
};

enum class SeqId : int32_t {};  // also the state slot

class KvCache {
 public:
  // Pools and states lie in `memory`, page tables on the host.
  explicit KvCache(const CachePlan& plan, Memory& memory = host_memory());

  const CachePlan& plan() const { return plan_; }
  SeqId open();           // throws kResource when all slots are in use
  void close(SeqId seq);  // gives back its pages and its slot
  int64_t num_open() const;

  // Makes room for tokens length .. length + count - 1. All or nothing: false means no page was
  // taken.
  [[nodiscard]] bool reserve(SeqId seq, int64_t count);
  // The reserved tokens are written: the sequence grows, old window pages go back.
  void commit(SeqId seq, int64_t count);

  int64_t length(SeqId seq) const;
  std::span<const int32_t> pages(SeqId seq, int group) const;
  const TensorView& pool(int index) const { return pools_[static_cast<size_t>(index)].view(); }
  const TensorView& state(int index) const { return states_[static_cast<size_t>(index)].view(); }
  void check_invariants() const;  // every page owned once; tests call it after each operation

 private:
  struct Sequence {
    bool open = false;
    int64_t length = 0;
    std::vector<std::vector<int32_t>> tables;  // [group][logical page], -1 once given back
  };
  Sequence& at(SeqId seq);
  const Sequence& at(SeqId seq) const;
  int64_t pages_for(const CachePlan::Group& group, int64_t tokens) const;

  CachePlan plan_;
  std::vector<PagePool> free_;  // [group]
  std::vector<Buffer> pools_;
  std::vector<Buffer> states_;  // [max_sequences, floats] each
  std::vector<Sequence> sequences_;
};

}  // namespace dsv4
