// One allocation cut into slots of equal size. A unit takes as many as it needs, wherever they are,
// so that nothing fragments.

#pragma once

#include <optional>
#include <span>
#include <vector>

#include "dsv4/tensor/buffer.h"

namespace dsv4 {

class SlotArena {
 public:
  SlotArena(int64_t slot_bytes, int64_t slots, Memory& memory)
      : slot_bytes_(slot_bytes), memory_(DType::kU8, {slots, slot_bytes}, memory) {
    for (int64_t slot = slots; slot-- > 0;) free_.push_back(static_cast<int32_t>(slot));
  }

  int64_t slot_bytes() const { return slot_bytes_; }
  int64_t num_slots() const { return memory_.view().dim(0); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }

  // Nothing when there are not so many.
  std::optional<std::vector<int32_t>> take(int64_t count) {
    if (count > num_free()) return std::nullopt;
    const auto first = free_.end() - static_cast<std::ptrdiff_t>(count);
    std::vector<int32_t> slots(first, free_.end());
    free_.erase(first, free_.end());
    return slots;
  }
  void give(std::span<const int32_t> slots) {
    free_.insert(free_.end(), slots.begin(), slots.end());
  }
  std::byte* data(int32_t slot) const { return memory_.view().row<std::byte>(slot); }

 private:
  int64_t slot_bytes_;
  Buffer memory_;  // [slots, slot_bytes] U8
  std::vector<int32_t> free_;
};

}  // namespace dsv4
