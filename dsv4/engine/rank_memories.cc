#include "dsv4/engine/rank_memories.h"

namespace dsv4 {

std::byte* RankMemories::allocate(int64_t bytes) {
  Block block{.bytes = bytes};
  try {
    for (Memory* memory : memories_) block.of_rank.push_back(memory->allocate(bytes));
  } catch (...) {
    free(block);
    throw;
  }
  std::byte* const first = block.of_rank.front();
  blocks_.emplace(first, std::move(block));
  return first;
}

void RankMemories::release(std::byte* data) noexcept {
  const auto block = blocks_.find(data);
  if (block == blocks_.end()) return;
  if (!kept_()) free(block->second);
  blocks_.erase(block);
}

void RankMemories::free(const Block& block) noexcept {
  for (size_t rank = 0; rank < block.of_rank.size(); ++rank)
    memories_[rank]->release(block.of_rank[rank]);
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
  for (int rank = 0; rank < world(); ++rank)
    memories_[static_cast<size_t>(rank)]->upload(at(rank, to), from, bytes);
}

void RankMemories::download(std::byte* to, const std::byte* from, int64_t bytes) {
  memories_.front()->download(to, from, bytes);
}

std::vector<LayerCache> caches_of_rank(std::span<const LayerCache> caches,
                                       const RankMemories& memories, int rank) {
  std::vector<LayerCache> moved(caches.begin(), caches.end());
  for (LayerCache& layer : moved)
    move_cache(layer, [&](TensorView& view) { view.data = memories.at(rank, view.data); });
  return moved;
}

DrafterStreams streams_of_rank(const DrafterStreams& streams, const RankMemories& memories,
                               int rank) {
  DrafterStreams moved = streams;
  if (!moved.streams.empty()) moved.streams.data = memories.at(rank, moved.streams.data);
  if (!moved.pending.empty()) moved.pending.data = memories.at(rank, moved.pending.data);
  return moved;
}

}  // namespace dsv4
