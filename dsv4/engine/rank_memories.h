// Memory that every rank of a model has: a block for each, named by the address of rank 0's. The
// cache of a model with several ranks is allocated here, so that page tables, prefixes and copies
// are described once and hold for all ranks.

#pragma once

#include <functional>
#include <map>
#include <vector>

#include "dsv4/tensor/memory.h"

namespace dsv4 {

class RankMemories final : public Memory {
 public:
  // kept(): blocks that are released stay, because a rank that did not come back may use them.
  RankMemories(int world, std::function<bool()> kept) : world_(world), kept_(std::move(kept)) {}

  std::byte* allocate(int64_t bytes) override;
  void release(std::byte* data) noexcept override;
  // To all ranks; from rank 0.
  void upload(std::byte* to, const std::byte* from, int64_t bytes) override;
  void download(std::byte* to, const std::byte* from, int64_t bytes) override;

  // The address of a rank for one of rank 0; null: it is in no block.
  std::byte* at(int rank, const std::byte* address) const;
  int world() const { return world_; }
  int64_t bytes() const;  // of each rank

 private:
  struct Block {
    int64_t bytes = 0;
    std::vector<std::byte*> of_rank;  // [world]
  };
  int world_;
  std::function<bool()> kept_;
  std::map<const std::byte*, Block> blocks_;  // by the address of rank 0
};

}  // namespace dsv4
