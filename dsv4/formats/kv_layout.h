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
// (nope + rope) floats or bf16s.

#pragma once

#include <bit>
#include <cstdint>

#include "dsv4/base/bits.h"
#include "dsv4/formats/float16.h"
#include "dsv4/formats/quant_group.h"

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

// Scale g of an entry whose scales start at `scales`; any float is valid.
DSV4_HD inline float kv_scale(const KvLayout& layout, const uint8_t* scales, int g) {
  if (!layout.v32()) return ue8m0_to_f32(scales[g]);
  uint32_t bits = 0;
  for (int b = 0; b < 4; ++b) bits |= static_cast<uint32_t>(scales[4 * g + b]) << (8 * b);
  return std::bit_cast<float>(bits);
}

// The quantizer of V3.2 rows: s = pow2ceil(max(max|x| / 448, 1e-4)), code = e4m3(x / s).
DSV4_HD inline float quantize_v32(const float* x, int n, uint8_t* codes) {
  const float ratio = absmax(x, n) / 448.f;
  const uint8_t scale = pow2ceil_ue8m0(ratio < 1e-4f ? 1e-4f : ratio);
  const float inverse = inverse_scale(scale);
  for (int i = 0; i < n; ++i) codes[i] = f32_to_e4m3(x[i] * inverse);
  return ue8m0_to_f32(scale);
}

DSV4_HD inline void pack_kv_scales(const KvLayout& layout, const float* x, uint8_t* codes,
                                   uint8_t* scales) {
  const int group = layout.group();
  for (int g = 0; g < layout.num_scales(); ++g) {
    if (!layout.v32()) {
      scales[g] = quantize_group_q8(x + g * group, group, codes + g * group);
      continue;
    }
    const float scale = quantize_v32(x + g * group, group, codes + g * group);
    const auto bits = std::bit_cast<uint32_t>(scale);
    for (int b = 0; b < 4; ++b) scales[4 * g + b] = static_cast<uint8_t>(bits >> (8 * b));
  }
  if (layout.v32()) return;
  for (int64_t g = layout.num_scales(); g < layout.scale_bytes(); ++g) scales[g] = 0;
}

// Writes entry i of a page that holds `entries`: codes and scales over groups of nope dims (V4: S8
// of docs/spec/dsv4.md 0.4), bf16 for the rest. x: [width] f32
DSV4_HD inline void pack_kv_entry(const KvLayout& layout, const float* x, uint8_t* page,
                                  int64_t entries, int64_t i) {
  pack_kv_scales(layout, x, page + layout.entry_offset(i), page + layout.scale_offset(entries, i));
  uint8_t* rope_bytes = page + layout.rope_offset(i);
  for (int c = 0; c < layout.rope; ++c) {
    const uint16_t code = f32_to_bf16(x[layout.nope + c]);
    rope_bytes[2 * c] = static_cast<uint8_t>(code & 0xffu);
    rope_bytes[2 * c + 1] = static_cast<uint8_t>(code >> 8);
  }
}

// The inverse; exact in f32 and in bf16 where scales are powers of two. x: [width] f32
DSV4_HD inline void unpack_kv_entry(const KvLayout& layout, const uint8_t* page, int64_t entries,
                                    int64_t i, float* x) {
  const uint8_t* codes = page + layout.entry_offset(i);
  const uint8_t* scales = page + layout.scale_offset(entries, i);
  const uint8_t* rope_bytes = page + layout.rope_offset(i);
  const int group = layout.group();
  for (int g = 0; g < layout.num_scales(); ++g) {
    const float scale = kv_scale(layout, scales, g);
    for (int c = g * group; c < (g + 1) * group; ++c) x[c] = e4m3_to_f32(codes[c]) * scale;
  }
  for (int c = 0; c < layout.rope; ++c) {
    const unsigned low = rope_bytes[2 * c], high = rope_bytes[2 * c + 1];
    x[layout.nope + c] = bf16_to_f32(static_cast<uint16_t>(low | (high << 8)));
  }
}

}  // namespace dsv4
