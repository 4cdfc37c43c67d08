// Byte layout of one page of indexer keys (docs/spec/dsv4.md 12.3), B keys of `width` dims (128 in
// the released models):
//
//   FP4   B x width/2 e2m1 pairs (low nibble = even c), then B x width/32 UE8M0    68 bytes per key
//
// The reference computes with FP4 after the Hadamard transform. Not here: the FP8 layout of other
// engines' caches, 132 bytes per key. pack_index_key.h writes and reads keys.

#pragma once

#include <cstdint>

#include "dsv4/base/bits.h"

namespace dsv4 {

struct IndexLayoutFp4 {
  int width = 128;  // a multiple of 32

  static constexpr int kGroup = 32;

  DSV4_HD constexpr int64_t code_bytes() const { return width / 2; }
  DSV4_HD constexpr int64_t scale_bytes() const { return width / kGroup; }
  DSV4_HD constexpr int64_t page_bytes(int64_t keys) const {
    return keys * (code_bytes() + scale_bytes());
  }
  DSV4_HD constexpr int64_t code_offset(int64_t i) const { return i * code_bytes(); }
  DSV4_HD constexpr int64_t scale_offset(int64_t keys, int64_t i) const {
    return keys * code_bytes() + i * scale_bytes();
  }
};
static_assert(IndexLayoutFp4{}.page_bytes(1) == 68);

}  // namespace dsv4
