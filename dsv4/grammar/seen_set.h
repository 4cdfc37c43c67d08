// A set of 64-bit keys that is filled and cleared again for every step of a grammar: hashing with
// open addressing, and an entry counts only while its stamp is the current one, so that clearing
// does not touch the table.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dsv4 {

class SeenSet {
 public:
  // False: the key was in the set already.
  bool insert(uint64_t key) {
    if (2 * ++size_ > slots_.size()) grow();
    Slot& slot = find(key);
    if (slot.stamp == stamp_) return --size_, false;
    slot = {key, stamp_};
    return true;
  }

  size_t size() const { return size_; }

  void clear() {
    size_ = 0;
    // One very large step must not hold its memory for the rest of the grammar's life.
    if (++stamp_ == 0 || slots_.size() > kMaxKept) *this = SeenSet();
  }

 private:
  struct Slot {
    uint64_t key = 0;
    uint32_t stamp = 0;
  };
  static constexpr size_t kMaxKept = 1 << 14;

  // The slot of the key, or the free one where it belongs.
  Slot& find(uint64_t key) {
    const size_t mask = slots_.size() - 1;
    size_t at = (key * 0x9e3779b97f4a7c15u >> 32) & mask;
    while (slots_[at].stamp == stamp_ && slots_[at].key != key) at = (at + 1) & mask;
    return slots_[at];
  }
  void grow() {
    std::vector<Slot> old(2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.stamp == stamp_) find(slot.key) = slot;
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(64);  // a power of two
  size_t size_ = 0;
  uint32_t stamp_ = 1;
};

}  // namespace dsv4
