// The symmetric memory (symmetric_memory.h) of a group of ranks: GPUs of this process, or one of it
// and those of other processes.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dsv4/comm/message.h"
#include "dsv4/comm/symmetric_memory.h"

namespace dsv4 {

class OfferedMemory;  // process_memory.h
class OpenedMemory;
class PeerMemory;  // peer_memory.h

class SymmetricRanks {
 public:
  explicit SymmetricRanks(int world);
  ~SymmetricRanks();

  // Memory of rank r, whose GPU is the current one, for kernels of all `ordinals`.
  void add(int r, const SymmetricBytes& bytes, std::span<const int> ordinals);
  // Memory of rank r, the process, and of all others, which call this at the same time. Memory of
  // an earlier call is freed. Throws when ranks want different sizes.
  void open(int r, const SymmetricBytes& bytes, const Swap& swap);

  // Closes memory of other processes. No rank has symmetric memory then.
  void close_others();

  // Whether all ranks have theirs.
  bool complete() const;
  // What a rank of this process has, when it is complete.
  SymmetricMemory& of(int r) { return of_rank_[static_cast<size_t>(r)]; }
  bool has(int r, const std::byte* data) const;
  // Bytes from an address of one rank to the same place of another.
  int64_t distance(int from, int to) const;

 private:
  int64_t total() const { return bytes_[0] + bytes_[1]; }
  void set_places();

  SymmetricBytes bytes_{};  // of the halves, multiples of 256
  std::vector<unsigned char*> begin_;
  std::vector<SymmetricMemory> of_rank_;
  std::vector<std::unique_ptr<PeerMemory>> peers_;
  std::unique_ptr<OfferedMemory> offered_;
  std::vector<std::unique_ptr<OpenedMemory>> opened_;
};

}  // namespace dsv4
