// Which steps of texts are stored, published as it changes: a router before several engines sends a
// request where its beginning is (docs/clusters.md).
//
//   block    one step of a text (128 tokens for the releases), named by a hash of the whole text up
//            to its end: 64 bits of the key of prefix_key.h
//   stored   in a tier, from now on: a text that begins so is not computed again up to here
//   removed  from a tier
//
// Only texts without a salt are published: a text with one belongs to one client, and no other
// client may learn its tokens.

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "dsv4/cache/prefix_key.h"

namespace dsv4 {

enum class CacheTier : uint8_t { kEngine, kRam, kDisk };
inline constexpr int kNumCacheTiers = 3;

struct BlockEvent {
  enum class Kind : uint8_t { kStored, kRemoved, kCleared };  // kCleared: all of every tier
  Kind kind = Kind::kStored;
  CacheTier tier = CacheTier::kEngine;
  std::vector<uint64_t> blocks;    // kStored: consecutive ones of a text
  std::optional<uint64_t> parent;  // kStored: the block before the first; none: a text begins here
  std::vector<int32_t> ids;        // kStored: [blocks, step]
  int64_t step = 0;                // tokens of a block
};

// Called by several threads, some of which hold a lock: it neither waits nor calls the cache.
using BlockEvents = std::function<void(BlockEvent)>;

uint64_t block_hash(const PrefixKey& key);

// The blocks of one tier. A block may be held several times, as by units that overlap; it is
// published when the first holder comes and when the last one goes.
class BlockLedger {
 public:
  BlockLedger() = default;  // publishes nothing
  BlockLedger(CacheTier tier, int64_t step, BlockEvents publish);

  bool publishes() const { return publish_ != nullptr; }
  // blocks: consecutive ones of a text after `parent`. ids: [blocks, step]
  void add(std::optional<uint64_t> parent, std::span<const uint64_t> blocks,
           std::span<const int32_t> ids);
  void remove(std::span<const uint64_t> blocks);

 private:
  CacheTier tier_ = CacheTier::kEngine;
  int64_t step_ = 1;
  BlockEvents publish_;
  std::unordered_map<uint64_t, int> held_;
};

}  // namespace dsv4
