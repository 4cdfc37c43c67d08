// The state of a compressor, per sequence and layer (docs/spec/dsv4.md 5.5): its newest tokens in a
// ring that is addressed by position, so a sequence goes back to an earlier length without any
// copy.
//
//   state [2][rows][columns] f32   [0] kv, [1] gate with ape added; token t in row t mod rows
//   overlap (CSA):    rows 2 r + spare, columns 2 d_c; an entry pools the block before and its own
//   otherwise (HCA):  rows   r + spare, columns   d_c
//
// A sequence of n tokens reads rows of positions n - rows .. n - 1 only, of which negative ones do
// not exist and are left out. A fresh sequence therefore needs no preparation, and one of n tokens
// may continue from any length >= n - spare: the rows that it then reads are still there.

#pragma once

#include <cstdint>

#include "dsv4/base/bits.h"

namespace dsv4 {

struct StateLayout {
  int ratio = 0;         // r: tokens per entry
  int width = 0;         // d_c
  bool overlap = false;  // an entry also pools the block before its own (docs/spec/dsv4.md 5.1)
  int spare = 0;         // tokens that a sequence can be taken back

  DSV4_HD constexpr int rows() const { return (overlap ? 2 * ratio : ratio) + spare; }
  DSV4_HD constexpr int columns() const { return overlap ? 2 * width : width; }
  DSV4_HD constexpr int64_t plane() const { return int64_t{rows()} * columns(); }
  DSV4_HD constexpr int64_t floats() const { return 2 * plane(); }
  DSV4_HD constexpr int row_of(int64_t t) const { return static_cast<int>(t % rows()); }
};
static_assert(StateLayout{4, 512, true}.floats() == 2 * 8 * 1024 &&
              StateLayout{128, 512, false}.floats() == 2 * 128 * 512);

}  // namespace dsv4
