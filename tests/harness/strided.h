// A call's tensors once more, with gaps between rows.
//
// A test names the views of its arguments whose axes, but for the last, may have any stride:
//
//   test.strided = [](RmsNormArgs& args, StridedCopy& copy) { copy(args.x), copy(args.out); };
//
// StridedCopy then points each at a copy with the same contents and other strides. The gaps are
// filled with 0xff, NaN in every float type: reading one shows in the output, and writing one fails
// here.

#pragma once

#include <string>
#include <vector>

#include "tests/harness/arena.h"

namespace dsv4::test {

// Strides of the copies: of an axis, what the axes within it take, and `gap` elements; the first
// element lies `gap` elements after the start of the allocation.
struct StridePattern {
  const char* name;
  int64_t gap_bytes;  // rounded up to whole elements
};
inline constexpr int64_t kAlignedGap = 64;  // for implementations that need rows on 16 bytes
inline constexpr StridePattern kStridePatterns[] = {
    {"gaps of one element", 1},
    {"gaps of 64 bytes", kAlignedGap},
};

class StridedCopy {
 public:
  // `arena` holds the tensors of the call that is copied.
  StridedCopy(const Arena& arena, const StridePattern& pattern)
      : arena_(arena), pattern_(pattern) {}

  // Empty views stay as they are; views of the same elements stay so.
  template <class Byte>
  void operator()(BasicTensorView<Byte>& view) {
    if (view.rank == 0 || view.data == nullptr) return;
    const TensorView copy = copy_of({view, const_cast<std::byte*>(view.data)});
    view = {copy, copy.data};
  }

  // Before the call: contents of the originals, outputs 0xff.
  void prepare();
  // After the call: EXPECTs that inputs and gaps are as they were, and writes outputs to the
  // originals.
  void finish();

 private:
  struct Copy {
    TensorView from, to;
    TensorView storage;  // [bytes] U8, of `memory_`
    Role role;
  };
  TensorView copy_of(const TensorView& from);

  const Arena& arena_;
  const StridePattern pattern_;
  Arena memory_;
  std::vector<Copy> copies_;
};

}  // namespace dsv4::test
