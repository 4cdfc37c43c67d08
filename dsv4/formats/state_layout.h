// The open block of a compressor, per sequence and layer (spec dsv4.md 5.5): `kv` and `gate` rows
// in f32, gate with ape already added.
//
//   state [2][rows][columns] f32:  [0] kv, [1] gate
//   overlap (r = 4):   rows 8, columns 2 d_c; rows 0..3 previous block, rows 4..7 current block
//   otherwise:         rows r, columns d_c;   row t mod r
//
// A fresh sequence starts with kv 0 and gate -inf, so absent rows have exactly zero weight.

#pragma once

#include <cstdint>
#include <limits>

#include "dsv4/base/bits.h"

namespace dsv4 {

struct StateLayout {
  int ratio = 4;    // r: tokens per entry
  int width = 512;  // d_c

  // CSA overlaps with the previous block; HCA does not (spec 5.1).
  DSV4_HD constexpr bool overlap() const { return ratio == 4; }
  DSV4_HD constexpr int rows() const { return overlap() ? 2 * ratio : ratio; }
  DSV4_HD constexpr int columns() const { return overlap() ? 2 * width : width; }
  DSV4_HD constexpr int64_t plane() const { return int64_t{rows()} * columns(); }
  DSV4_HD constexpr int64_t floats() const { return 2 * plane(); }
  // Row of token t in its own block.
  DSV4_HD constexpr int row_of(int64_t t) const {
    return static_cast<int>(t % ratio) + (overlap() ? ratio : 0);
  }
};
static_assert(StateLayout{4, 512}.floats() == 2 * 8 * 1024 &&
              StateLayout{128, 512}.floats() == 2 * 128 * 512);

inline void reset_state(const StateLayout& layout, float* state) {
  for (int64_t i = 0; i < layout.plane(); ++i) state[i] = 0.f;
  for (int64_t i = layout.plane(); i < layout.floats(); ++i) {
    state[i] = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace dsv4
