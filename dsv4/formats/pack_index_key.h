// Writes and reads keys of a page of the indexer (index_layout.h).

#pragma once

#include "dsv4/formats/index_layout.h"
#include "dsv4/formats/quant_group.h"

namespace dsv4 {

// x: [width] f32 -> key i of a page of `keys`: S4 over groups of 32.
DSV4_HD inline void pack_index_key(const IndexLayoutFp4& layout, const float* x, uint8_t* page,
                                   int64_t keys, int64_t i) {
  constexpr int kGroup = IndexLayoutFp4::kGroup;
  uint8_t* pairs = page + layout.code_offset(i);
  uint8_t* scales = page + layout.scale_offset(keys, i);
  for (int g = 0; g < layout.width / kGroup; ++g) {
    scales[g] = quantize_q4(x + g * kGroup, kGroup, pairs + g * kGroup / 2);
  }
}

DSV4_HD inline void unpack_index_key(const IndexLayoutFp4& layout, const uint8_t* page,
                                     int64_t keys, int64_t i, float* x) {
  const uint8_t* pairs = page + layout.code_offset(i);
  const uint8_t* scales = page + layout.scale_offset(keys, i);
  for (int c = 0; c < layout.width; ++c) {
    x[c] =
        e2m1_to_f32(e2m1_code(pairs[c / 2], c)) * ue8m0_to_f32(scales[c / IndexLayoutFp4::kGroup]);
  }
}

}  // namespace dsv4
