// Writes and reads entries of a page (kv_layout.h), codes and scales.

#pragma once

#include <bit>

#include "dsv4/formats/float16.h"
#include "dsv4/formats/kv_layout.h"
#include "dsv4/formats/quant_group.h"

namespace dsv4 {

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
