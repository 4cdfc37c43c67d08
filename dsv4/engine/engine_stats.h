// What an engine has done so far, and what is in its cache now.

#pragma once

#include <cstdint>
#include <vector>

#include "dsv4/cache/unit_store.h"
#include "dsv4/engine/speculation.h"

namespace dsv4 {

struct EngineStats {
  int64_t cached_tokens = 0;                // prompt tokens that a stored prefix spared
  int64_t ram_tokens = 0, disk_tokens = 0;  // of them, those that units brought
  int64_t prefill_tokens = 0;  // prompt tokens that went through the network, and recomputed ones
  int64_t decode_tokens = 0;   // generated tokens that did, in steps without prompt tokens
  double prefill_seconds = 0, decode_seconds = 0;  // of steps with, and without, prompt tokens
  int64_t steps = 0;
  int64_t preemptions = 0;
  int64_t cache_tokens = 0;           // that the cache was made for
  int64_t block_tokens = 0;           // checkpoints lie at multiples of so many
  int64_t pages = 0, pages_used = 0;  // of the cache, now; used: by running requests
  // Pages of one rate of entries (cache/page_tables.h); stored: only prefixes hold them.
  struct PageGroup {
    int tokens_per_entry = 1;
    bool window = false;  // entries of the newest tokens only
    int64_t used = 0, stored = 0, free = 0;
  };
  std::vector<PageGroup> groups;
  int64_t state_slots = 0, state_slots_used = 0;
  int64_t masks = 0;        // made of constraints
  double mask_seconds = 0;  // the time that took, during which a device computes
  int64_t checkpoints = 0;  // in the cache, now
  int64_t checkpoint_limit = 0;
  UnitStoreStats units;
  SpeculationStats speculation;
};

}  // namespace dsv4
