// Byte layout of one page of attention entries (window tokens or compressed entries). The ownership
// of pages is in cache/.
//
// V4 (docs/spec/dsv4.md 12.2; with nope 448 and rope 64 a row takes 584 bytes), B rows:
//
//   |<-- B x (nope + 2 rope) -->|<-- B x scale_bytes -->|
//   | e0 | e1 | ..   | e(B-1)   | s0 | s1 | .. | s(B-1) | pad to a multiple of the entry
//
//   e = nope x e4m3, then rope x bf16      s = nope/64 UE8M0 scales, zero padded to 8 bytes
//
// V3.2 (docs/spec/attention-kernels.md 1.3; with nope 512 and rope 64 a row takes 656 bytes), B
// rows:
//
//   | r0 | r1 | .. | r(B-1) |
//
//   r = nope x e4m3, then nope/128 f32 scales, then rope x bf16 (keys only: the values are nope)
//
// A scale multiplies its group of e4m3 values; all numbers are little endian. Plain: B rows of
// (nope + rope) floats or bf16s. pack_kv_entry.h writes and reads entries.

#pragma once

#include <cstdint>

#include "dsv4/base/bits.h"

namespace dsv4 {

enum class KvRowFormat : uint8_t { kV4, kV32 };

struct KvLayout {
  int nope = 448;  // dims quantized to e4m3; a multiple of group() in the packed forms
  int rope = 64;   // dims kept in bf16
  KvRowFormat format = KvRowFormat::kV4;

  DSV4_HD constexpr bool v32() const { return format == KvRowFormat::kV32; }
  DSV4_HD constexpr int group() const { return v32() ? 128 : 64; }  // nope dims that share a scale
  DSV4_HD constexpr int width() const { return nope + rope; }
  DSV4_HD constexpr int num_scales() const { return nope / group(); }
  DSV4_HD constexpr int64_t scale_bytes() const {
    return v32() ? int64_t{4} * num_scales() : align_up(num_scales(), 8);
  }
  // Bytes from one entry of a page to the next.
  DSV4_HD constexpr int64_t entry_bytes() const {
    return nope + 2 * rope + (v32() ? scale_bytes() : 0);
  }
  // Bytes of a row, contiguous or not.
  DSV4_HD constexpr int64_t row_bytes() const { return nope + 2 * rope + scale_bytes(); }
  DSV4_HD constexpr int64_t page_bytes(int64_t entries) const {
    return v32() ? entries * row_bytes() : align_up(entries * row_bytes(), entry_bytes());
  }
  DSV4_HD constexpr int64_t entry_offset(int64_t i) const { return i * entry_bytes(); }
  DSV4_HD constexpr int64_t scale_offset(int64_t entries, int64_t i) const {
    return v32() ? entry_offset(i) + nope : entries * entry_bytes() + i * scale_bytes();
  }
  DSV4_HD constexpr int64_t rope_offset(int64_t i) const {
    return entry_offset(i) + nope + (v32() ? scale_bytes() : 0);
  }
};
inline constexpr KvLayout kV32Layout{.nope = 512, .rope = 64, .format = KvRowFormat::kV32};

static_assert(KvLayout{}.entry_bytes() == 576 && KvLayout{}.scale_bytes() == 8);
static_assert(KvLayout{}.page_bytes(64) == 37440 && KvLayout{}.page_bytes(2) == 1728);
static_assert(kV32Layout.row_bytes() == 656 && kV32Layout.page_bytes(64) == 64 * 656);

}  // namespace dsv4
