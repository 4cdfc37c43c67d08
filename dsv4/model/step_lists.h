// The memory in which the lists of a forward step are written, and from which ops read them.
//
// The host builds the lists (step.cc). On the CPU the ops read them in place. On a device they are
// built in page-locked memory and read from a mirror in device memory, at the same offsets: one
// copy per step brings them over, and steps of equal extents find their lists at equal addresses,
// which is what a captured graph needs.

#pragma once

#include "dsv4/tensor/scratch.h"

namespace dsv4 {

class StepLists {
 public:
  // Ops read the lists in place.
  explicit StepLists(Scratch& scratch) : scratch_(scratch) {}
  // Ops read the lists `shift` bytes away from where they are written.
  StepLists(Scratch& scratch, std::ptrdiff_t shift) : scratch_(scratch), shift_(shift) {}

  TensorView take(DType dtype, std::initializer_list<int64_t> shape) {
    return scratch_.take(dtype, shape);
  }
  bool counting() const { return scratch_.is_counting(); }  // lists have no memory
  // `written` at the address that ops read.
  ConstTensorView read(const TensorView& written) const { return {written, written.data + shift_}; }

 private:
  Scratch& scratch_;
  std::ptrdiff_t shift_ = 0;
};

}  // namespace dsv4
