#include "dsv4/engine/rank_mirror.h"

#include <algorithm>

#include "dsv4/engine/rank_messages.h"

namespace dsv4 {

std::byte* MirroredMemory::allocate(int64_t bytes) {
  std::byte* const data = own_.allocate(bytes);
  group_.tell(kind_of(RankMessage::kAllocate), MessageWriter().put(data).put(bytes).bytes());
  blocks_.emplace(data, bytes);
  return data;
}

void MirroredMemory::release(std::byte* data) noexcept {
  if (blocks_.erase(data) == 0) return;
  own_.release(data);
  try {
    group_.tell(kind_of(RankMessage::kRelease), MessageWriter().put(data).bytes());
  } catch (const Error&) {  // the group has ended, and its memory with it
  }
}

void MirroredMemory::upload(std::byte* to, const std::byte* from, int64_t bytes) {
  own_.upload(to, from, bytes);
  MessageWriter message;
  message.put(to).put(bytes).raw(from, static_cast<size_t>(bytes));
  group_.tell(kind_of(RankMessage::kUpload), message.bytes());
}

bool MirroredMemory::holds(const std::byte* address) const {
  const auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return false;
  const auto& [first, bytes] = *std::prev(after);
  return address - first < bytes;
}

BlocksOfRank::~BlocksOfRank() {
  for (const auto& [address, block] : blocks_) memory_.release(block.own);
}

void BlocksOfRank::allocate(const std::byte* address, int64_t bytes) {
  release(address);
  blocks_[address] = {memory_.allocate(bytes), bytes};
}

void BlocksOfRank::release(const std::byte* address) {
  const auto block = blocks_.find(address);
  if (block == blocks_.end()) return;
  memory_.release(block->second.own);
  blocks_.erase(block);
}

bool BlocksOfRank::holds(const std::byte* own) const {
  return std::ranges::any_of(blocks_, [&](const auto& entry) {
    const Block& block = entry.second;
    return own >= block.own && own < block.own + block.bytes;
  });
}

std::byte* BlocksOfRank::at(const std::byte* address, int64_t bytes) const {
  const auto after = blocks_.upper_bound(address);
  if (after != blocks_.begin()) {
    const auto& [first, block] = *std::prev(after);
    const int64_t offset = address - first;
    if (bytes >= 0 && offset <= block.bytes - bytes) return block.own + offset;
  }
  fail(ErrorCode::kBadInput, "rank 0 names {} bytes of memory that no block holds", bytes);
}

}  // namespace dsv4
