#include "dsv4/cache/block_events.h"

#include <cstring>
#include <utility>

#include "dsv4/base/error.h"

namespace dsv4 {

uint64_t block_hash(const PrefixKey& key) {
  uint64_t hash = 0;
  std::memcpy(&hash, key.bytes.data(), sizeof hash);
  return hash;
}

BlockLedger::BlockLedger(CacheTier tier, int64_t step, BlockEvents publish)
    : tier_(tier), step_(step), publish_(std::move(publish)) {
}

void BlockLedger::add(std::optional<uint64_t> parent, std::span<const uint64_t> blocks,
                      std::span<const int32_t> ids) {
  if (!publishes()) return;
  const auto step = static_cast<size_t>(step_);
  DSV4_CHECK(ids.size() == blocks.size() * step, "{} blocks of {} tokens with {} ids",
             blocks.size(), step_, ids.size());
  // An event for each run of blocks that are new.
  BlockEvent event;
  const auto send = [&] {
    if (!event.blocks.empty()) publish_(std::exchange(event, {}));
  };
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (++held_[blocks[i]] > 1) {
      send();
      continue;
    }
    if (event.blocks.empty()) {
      event = {.kind = BlockEvent::Kind::kStored, .tier = tier_, .step = step_};
      event.parent = i == 0 ? parent : blocks[i - 1];
    }
    event.blocks.push_back(blocks[i]);
    const auto own = ids.subspan(i * step, step);
    event.ids.insert(event.ids.end(), own.begin(), own.end());
  }
  send();
}

void BlockLedger::remove(std::span<const uint64_t> blocks) {
  if (!publishes()) return;
  BlockEvent event{.kind = BlockEvent::Kind::kRemoved, .tier = tier_, .step = step_};
  for (const uint64_t block : blocks) {
    const auto found = held_.find(block);
    DSV4_CHECK(found != held_.end(), "block {:#x} is not held", block);
    if (--found->second > 0) continue;
    held_.erase(found);
    event.blocks.push_back(block);
  }
  if (!event.blocks.empty()) publish_(std::move(event));
}

}  // namespace dsv4
