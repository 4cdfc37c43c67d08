// Memory that every rank of a model has: a block for each in its own memory, named by the address
// of rank 0's. The cache of a model with several ranks is allocated here, so that page tables,
// prefixes and copies are described once and hold for all ranks.

#pragma once

#include <functional>
#include <map>
#include <span>
#include <vector>

#include "dsv4/model/batch.h"
#include "dsv4/tensor/memory.h"

namespace dsv4 {

class RankMemories final : public Memory {
 public:
  // memories: of each rank. kept(): blocks that are released stay, because a rank that did not come
  // back may use them.
  RankMemories(std::vector<Memory*> memories, std::function<bool()> kept)
      : memories_(std::move(memories)), kept_(std::move(kept)) {}

  std::byte* allocate(int64_t bytes) override;
  void release(std::byte* data) noexcept override;
  // To all ranks; from rank 0.
  void upload(std::byte* to, const std::byte* from, int64_t bytes) override;
  void download(std::byte* to, const std::byte* from, int64_t bytes) override;

  // The address of a rank for one of rank 0; null: it is in no block.
  std::byte* at(int rank, const std::byte* address) const;
  int world() const { return static_cast<int>(memories_.size()); }
  int64_t bytes() const;  // of each rank

 private:
  struct Block {
    int64_t bytes = 0;
    std::vector<std::byte*> of_rank;  // [world]
  };
  void free(const Block& block) noexcept;

  std::vector<Memory*> memories_;  // [world]
  std::function<bool()> kept_;
  std::map<const std::byte*, Block> blocks_;  // by the address of rank 0
};

// Calls move(view) for every tensor of a layer's cache that is not empty.
template <class Move>
void move_cache(LayerCache& layer, const Move& move) {
  for (TensorView* view : {&layer.window.pages, &layer.entries.pages, &layer.keys.pages,
                           &layer.state.slots, &layer.index_state.slots})
    if (!view->empty()) move(*view);
}

// The caches of a rank, for those of rank 0.
std::vector<LayerCache> caches_of_rank(std::span<const LayerCache> caches,
                                       const RankMemories& memories, int rank);
// And what MTP has beside them.
DrafterStreams streams_of_rank(const DrafterStreams& streams, const RankMemories& memories,
                               int rank);

}  // namespace dsv4
