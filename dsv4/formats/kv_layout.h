// Byte layout of one page of attention entries (window tokens or compressed entries). Layout only:
// who owns a page is cache/'s business.
//
// Packed (spec dsv4.md 12.2; with nope 448 and rope 64 an entry takes 584 bytes):
//
//   |<-- B x (nope + 2 rope) -->|<-- B x scale_bytes -->|
//   | e0 | e1 | ..   | e(B-1)   | s0 | s1 | .. | s(B-1) | pad to a multiple of the entry
//
//   e = nope x e4m3, then rope x bf16      s = nope/64 UE8M0 scales, zero padded to 8 bytes
//
// Plain: B rows of (nope + rope) floats.

#pragma once

#include <cstdint>

#include "dsv4/base/bits.h"
#include "dsv4/formats/float16.h"
#include "dsv4/formats/quant_group.h"

namespace dsv4 {

struct KvLayout {
  int nope = 448;  // dims quantised to e4m3; a multiple of 64 in the packed form
  int rope = 64;   // dims kept in bf16

  static constexpr int kGroup = 64;  // nope dims that share a scale

  DSV4_HD constexpr int width() const { return nope + rope; }
  DSV4_HD constexpr int num_scales() const { return nope / kGroup; }
  DSV4_HD constexpr int64_t entry_bytes() const { return nope + 2 * rope; }
  DSV4_HD constexpr int64_t scale_bytes() const { return align_up(num_scales(), 8); }
  DSV4_HD constexpr int64_t page_bytes(int64_t entries) const {
    return align_up(entries * (entry_bytes() + scale_bytes()), entry_bytes());
  }
  DSV4_HD constexpr int64_t entry_offset(int64_t i) const { return i * entry_bytes(); }
  DSV4_HD constexpr int64_t scale_offset(int64_t entries, int64_t i) const {
    return entries * entry_bytes() + i * scale_bytes();
  }
};
static_assert(KvLayout{}.entry_bytes() == 576 && KvLayout{}.scale_bytes() == 8);
static_assert(KvLayout{}.page_bytes(64) == 37440 && KvLayout{}.page_bytes(2) == 1728);

// Writes entry i of a page that holds `entries`: S8 over groups of 64 nope dims, bf16 for the rest.
// x: [width] f32
DSV4_HD inline void pack_kv_entry(const KvLayout& layout, const float* x, uint8_t* page,
                                  int64_t entries, int64_t i) {
  uint8_t* codes = page + layout.entry_offset(i);
  uint8_t* scales = page + layout.scale_offset(entries, i);
  for (int g = 0; g < layout.num_scales(); ++g) {
    scales[g] =
        quantize_q8(x + g * KvLayout::kGroup, KvLayout::kGroup, codes + g * KvLayout::kGroup);
  }
  for (int64_t g = layout.num_scales(); g < layout.scale_bytes(); ++g) scales[g] = 0;
  for (int c = 0; c < layout.rope; ++c) {
    const uint16_t code = f32_to_bf16(x[layout.nope + c]);
    codes[layout.nope + 2 * c] = static_cast<uint8_t>(code & 0xffu);
    codes[layout.nope + 2 * c + 1] = static_cast<uint8_t>(code >> 8);
  }
}

// The inverse; exact in f32 and in bf16. x: [width] f32
DSV4_HD inline void unpack_kv_entry(const KvLayout& layout, const uint8_t* page, int64_t entries,
                                    int64_t i, float* x) {
  const uint8_t* codes = page + layout.entry_offset(i);
  const uint8_t* scales = page + layout.scale_offset(entries, i);
  for (int c = 0; c < layout.nope; ++c) {
    x[c] = e4m3_to_f32(codes[c]) * ue8m0_to_f32(scales[c / KvLayout::kGroup]);
  }
  for (int c = 0; c < layout.rope; ++c) {
    const unsigned low = codes[layout.nope + 2 * c], high = codes[layout.nope + 2 * c + 1];
    x[layout.nope + c] = bf16_to_f32(static_cast<uint16_t>(low | (high << 8)));
  }
}

}  // namespace dsv4
