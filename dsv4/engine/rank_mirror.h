// Memory of the caches of ranks that are processes: a block in the memory of every process, named
// by its address on rank 0, as rank_memories.h has it for ranks of one process.

#pragma once

#include <functional>
#include <map>
#include <utility>

#include "dsv4/comm/rank_processes.h"
#include "dsv4/tensor/memory.h"

namespace dsv4 {

// Memory that steps write: checked(read) reads it and finds out whether they could.
class CheckedMemory final : public Memory {
 public:
  using Checked = std::function<void(const std::function<void()>& read)>;
  CheckedMemory(Memory& own, Checked checked) : own_(own), checked_(std::move(checked)) {}
  std::byte* allocate(int64_t bytes) override { return own_.allocate(bytes); }
  void release(std::byte* data) noexcept override { own_.release(data); }
  void upload(std::byte* to, const std::byte* from, int64_t bytes) override {
    own_.upload(to, from, bytes);
  }
  void download(std::byte* to, const std::byte* from, int64_t bytes) override {
    checked_([&] { own_.download(to, from, bytes); });
  }

 private:
  Memory& own_;
  const Checked checked_;
};

// On rank 0: what happens to a block of its own happens on all other ranks.
class MirroredMemory final : public Memory {
 public:
  MirroredMemory(RankProcesses& group, Memory& own) : group_(group), own_(own) {}
  std::byte* allocate(int64_t bytes) override;
  void release(std::byte* data) noexcept override;
  void upload(std::byte* to, const std::byte* from, int64_t bytes) override;
  void download(std::byte* to, const std::byte* from, int64_t bytes) override {
    own_.download(to, from, bytes);
  }
  bool holds(const std::byte* address) const;

 private:
  RankProcesses& group_;
  Memory& own_;
  std::map<const std::byte*, int64_t> blocks_;  // bytes
};

// On another rank: its own blocks, by the addresses of rank 0.
class BlocksOfRank {
 public:
  explicit BlocksOfRank(Memory& memory) : memory_(memory) {}
  ~BlocksOfRank();
  BlocksOfRank(const BlocksOfRank&) = delete;
  BlocksOfRank& operator=(const BlocksOfRank&) = delete;

  Memory& memory() { return memory_; }
  void allocate(const std::byte* address, int64_t bytes);
  void release(const std::byte* address);
  // An own address, of some block.
  bool holds(const std::byte* own) const;
  // Where `bytes` bytes of rank 0 lie here; throws kBadInput where they are in no block.
  std::byte* at(const std::byte* address, int64_t bytes) const;

 private:
  struct Block {
    std::byte* own = nullptr;
    int64_t bytes = 0;
  };
  Memory& memory_;
  std::map<const std::byte*, Block> blocks_;
};

}  // namespace dsv4
