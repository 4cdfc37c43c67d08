// Prefixes of texts that later sequences continue instead of computing them again
// (docs/spec/serving.md 5). They live in the cache's own memory: pages that are shared and never
// written, and a copy of what the compressors still need.
//
//   checkpoint at P   the pages of the first P tokens (page_tables.h), and of each compressor with
//                     overlap the rows of tokens P - r .. P - 1: at P every open block is empty
//
// P is a multiple of step() (checkpoint_step() of cache_plan.h, 128 for the releases). There are
// limits().checkpoints of them; a new one takes the place of the least recently used. Their pages
// count as free for the scheduler: evict() gives them back.
//
// With tiers, checkpoints are also units in host memory and on a disk (cache/unit_store.h), from
// which attach() makes them again.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "dsv4/cache/prefix_index.h"
#include "dsv4/engine/model_cache.h"
#include "dsv4/engine/runner.h"
#include "dsv4/engine/unit_bytes.h"

namespace dsv4 {

// A handle of a checkpoint; one that was given up is never valid again.
enum class CheckpointId : uint64_t { kNone = 0 };

class PrefixCache {
 public:
  PrefixCache(ModelCache& cache, Runner& runner);
  ~PrefixCache() { finish_saves(/*wait=*/true); }
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;
  // From now on, publishes every step of a text that is stored in the cache itself.
  void publish(BlockEvents events, const Digest& fingerprint) {
    index_.publish(std::move(events), fingerprint);
  }
  // Units of this fingerprint; throws what UnitStore does.
  void open_tiers(const UnitStoreOptions& options, const Digest& fingerprint);
  UnitStore* units() { return units_.get(); }  // null: no tiers
  const UnitStore* units() const { return units_.get(); }

  int64_t step() const { return index_.step(); }
  int64_t size() const { return static_cast<int64_t>(by_use_.size()); }

  // The salt separates texts that must not be shared.
  struct Match {
    int64_t tokens = 0;  // of the longest stored prefix of `ids`; 0: none
    int64_t common = 0;  // that `ids` shares with a stored text, in steps
  };
  Match match(std::string_view salt, std::span<const int32_t> ids) const;
  // An empty sequence begins with that prefix, or with the one of `lease` where it is longer and
  // ready; null: none. Says which tokens came from where.
  struct Attached {
    int64_t tokens = 0;         // of the prefix
    int64_t ram = 0, disk = 0;  // of them, those that a unit brought
  };
  Attached attach(SeqId seq, std::string_view salt, std::span<const int32_t> ids,
                  UnitStore::Lease* lease = nullptr);
  // Keeps a sequence of exactly these tokens, a multiple of step(). kNone: they are stored already.
  CheckpointId store(SeqId seq, std::string_view salt, std::span<const int32_t> ids);
  // Makes a checkpoint that still exists a unit too. `ids`: a text that begins with its own, whose
  // chain this is. Without tiers nothing. The copies may go on beside the next steps;
  // finish_saves() makes units of those that have ended, or waits for all.
  void save(CheckpointId id, const PrefixChain& chain, std::span<const int32_t> ids);
  void finish_saves(bool wait);
  // Gives up a checkpoint, if it still exists.
  void erase(CheckpointId id);
  // Gives up the least recently used checkpoint; false: there is none.
  bool evict();
  // Throws unless every place is free or has one checkpoint, and the units are consistent.
  void check_invariants() const;

 private:
  struct Checkpoint {
    CheckpointId id{};
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
  void give_up(int place);
  int take_place();
  std::byte* states_of(int place) const { return states_.view().row<std::byte>(place); }
  void fill_states(SeqId seq, int place);
  bool share_pages(SeqId seq, int place);
  bool grow(SeqId seq, int64_t tokens);
  bool load(SeqId seq, std::string_view salt, int64_t have, UnitStore::Lease& lease);

  ModelCache& cache_;
  Runner& runner_;
  PrefixIndex index_;
  std::vector<Checkpoint> checkpoints_;
  std::vector<int> free_;           // places without a checkpoint
  Buffer states_;                   // [checkpoints, bytes] U8
  std::map<uint64_t, int> by_use_;  // last_use -> place, least recently used first
  std::map<CheckpointId, int> places_;
  uint64_t num_uses_ = 0, num_stored_ = 0;
  UnitBytes bytes_;
  std::unique_ptr<UnitStore> units_;
  struct Save {
    CheckpointId checkpoint{};
    UnitStore::Saving unit;
    std::unique_ptr<Transfer> transfer;
  };
  std::optional<Save> save_;  // the one that goes on
};

// Bytes that a checkpoint keeps of the compressors' states.
int64_t prefix_state_bytes(std::span<const StateLayout> states);

}  // namespace dsv4
