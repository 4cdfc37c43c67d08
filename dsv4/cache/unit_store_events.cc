// What the store publishes of its units (block_events.h): with its mutex held, so that events leave
// in the order of the changes.

#include <set>
#include <utility>

#include "dsv4/cache/unit_store.h"

namespace dsv4 {

// The hashes of the blocks that the unit holds.
std::vector<uint64_t> UnitStore::blocks_of(const Entry& entry) const {
  PrefixKey key =
      entry.header.is_root() ? root_key(fingerprint_, entry.header.salt) : entry.header.parent;
  std::vector<uint64_t> blocks;
  const auto step = static_cast<size_t>(layout_.step);
  for (size_t begin = 0; begin < entry.ids.size(); begin += step) {
    key = next_key(key, std::span(entry.ids).subspan(begin, step));
    blocks.push_back(block_hash(key));
  }
  return blocks;
}

std::vector<uint64_t> UnitStore::blocks(CacheTier tier) const {
  const Lock lock(mutex_);
  std::set<uint64_t> blocks;
  for (const auto& [key, entry] : units_) {
    const bool in_ram = !entry->slots.empty() && entry->read == Io::kNone;
    if (entry->header.salt != salt_key("") || !(tier == CacheTier::kRam ? in_ram : entry->on_disk))
      continue;
    for (const uint64_t block : blocks_of(*entry)) blocks.insert(block);
  }
  return {blocks.begin(), blocks.end()};
}

// A unit of which only the header was read has no ids to publish.
void UnitStore::publish_stored(Entry& entry, CacheTier tier) {
  BlockLedger& ledger = ledgers_[static_cast<size_t>(tier)];
  bool& published = entry.published[static_cast<size_t>(tier)];
  if (!ledger.publishes() || published || entry.dead || entry.ids.empty()) return;
  static const PrefixKey kNoSalt = salt_key("");
  if (entry.header.salt != kNoSalt) return;
  published = true;
  const bool root = entry.header.is_root();
  ledger.add(root ? std::nullopt : std::optional(block_hash(entry.header.parent)), blocks_of(entry),
             entry.ids);
}

void UnitStore::publish_removed(Entry& entry, CacheTier tier) {
  if (std::exchange(entry.published[static_cast<size_t>(tier)], false))
    ledgers_[static_cast<size_t>(tier)].remove(blocks_of(entry));
}

}  // namespace dsv4
