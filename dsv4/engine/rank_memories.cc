#include "dsv4/engine/rank_memories.h"

#include <cstring>

namespace dsv4 {

std::byte* RankMemories::allocate(int64_t bytes) {
  Block block{.bytes = bytes};
  try {
    for (int rank = 0; rank < world_; ++rank)
      block.of_rank.push_back(host_memory().allocate(bytes));
  } catch (...) {
    for (std::byte* data : block.of_rank) host_memory().release(data);
    throw;
  }
  std::byte* const first = block.of_rank.front();
  blocks_.emplace(first, std::move(block));
  return first;
}

void RankMemories::release(std::byte* data) noexcept {
  const auto block = blocks_.find(data);
  if (block == blocks_.end()) return;
  if (!kept_())
    for (std::byte* of_rank : block->second.of_rank) host_memory().release(of_rank);
  blocks_.erase(block);
}

std::byte* RankMemories::at(int rank, const std::byte* address) const {
  auto block = blocks_.upper_bound(address);
  if (block == blocks_.begin()) return nullptr;
  --block;
  const int64_t offset = address - block->first;
  if (offset >= block->second.bytes) return nullptr;
  return block->second.of_rank[static_cast<size_t>(rank)] + offset;
}

int64_t RankMemories::bytes() const {
  int64_t sum = 0;
  for (const auto& [first, block] : blocks_) sum += block.bytes;
  return sum;
}

void RankMemories::upload(std::byte* to, const std::byte* from, int64_t bytes) {
  for (int rank = 0; rank < world_; ++rank)
    std::memcpy(at(rank, to), from, static_cast<size_t>(bytes));
}

void RankMemories::download(std::byte* to, const std::byte* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace dsv4
