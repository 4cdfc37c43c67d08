// Byte-pair merging: start with one token per byte and, as long as any two neighbors can be merged,
// apply the merge of the lowest rank, and of equal ranks the leftmost. O(n log n) in the length of
// the piece.

#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace dsv4 {

// The rank of a merge is its index in the list.
struct Merge {
  int32_t left, right, result;  // token ids
};

// (left, right) -> rank: open addressing, at most half full.
class MergeTable {
 public:
  // No pair occurs twice.
  explicit MergeTable(std::span<const Merge> merges);
  // -1: no such merge.
  int32_t rank(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t pair = 0;
    int32_t rank = -1;  // -1: free
  };
  size_t home(uint64_t pair) const;

  std::vector<Slot> slots_;
  int shift_ = 0;
};

class Bpe {
 public:
  // Reused across pieces; one per thread.
  class Scratch {
    friend class Bpe;
    struct Symbol {
      int32_t id;
      int32_t prev, next;  // indices; -1: none
    };
    std::vector<Symbol> symbols_;
    std::vector<uint64_t> queue_;  // heap of rank << 32 | index of the left symbol
  };

  Bpe(std::vector<Merge> merges, const std::array<int32_t, 256>& byte_ids);

  // Appends the ids of `piece` (shorter than 2^31 bytes, any bytes).
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const;

 private:
  void offer(int32_t left, Scratch& scratch) const;
  void merge_all(Scratch& scratch) const;

  std::vector<Merge> merges_;
  std::array<int32_t, 256> byte_ids_;
  MergeTable table_;
};

}  // namespace dsv4
