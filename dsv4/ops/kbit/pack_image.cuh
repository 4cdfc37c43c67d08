// The kernel of pack_image.h. A warp makes a unit of 16 rows x 256 columns, each lane the words
// that it reads again later. The four lanes of a row read the same planes, or words of FP4 pairs.

#pragma once

#include "dsv4/device/math.cuh"
#include "dsv4/ops/kbit/pack_image.h"

namespace dsv4::kbit_packing {

inline constexpr int kWarps = 8;

struct Source {
  FlatKbit first, second;
  int count;
};

// A row of the image: where its planes and scales are; null past the end.
struct FlatRow {
  const uint32_t* planes = nullptr;
  const uint8_t* scale = nullptr;

  __device__ FlatRow(const KbitImage& image, const Source& source, int64_t row) {
    if (row >= image.n) return;
    // With two weights, groups of 8 rows alternate.
    const int which = source.count == 1 ? 0 : static_cast<int>(row % 16 / 8);
    const int64_t at = source.count == 1 ? row : row / 16 * 8 + row % 8;
    const FlatKbit from = which == 0 ? source.first : source.second;
    planes = from.planes + at * (image.k / kKbitBlock) * image.bits;
    scale = from.scale + at * (image.k / block_columns(image.scale));
  }
};

// The words of a step of a lane, whose first 32 columns are block `first_block`: those of
// pack_kbit_lane(), one bit after the other. rows: g and g + 8
template <int K, bool kFp4>
__device__ void pack_step(const KbitImage& image, const FlatRow (&rows)[2], int64_t first_block,
                          int t, uint32_t (&words)[K]) {
#pragma unroll
  for (int i = 0; i < K; ++i) words[i] = 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const int64_t block = first_block + b;
      if (rows[h].planes == nullptr || block >= image.k / kKbitBlock) continue;
      uint32_t planes[K];
#pragma unroll
      for (int p = 0; p < K; ++p) planes[p] = rows[h].planes[block * K + p];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int e = b * 16 + i / 4 * 8 + 4 * h + i % 4;
        const int column = kbit_fragment(t, e).column - 32 * b;
        uint8_t code;
        if constexpr (kFp4) {
          // Eight columns a word; which word does not depend on the lane.
          code = planes[kbit_fragment(0, e).column / 8 - 4 * b] >> (column % 8 * 4) & 15u;
        } else {
          code = kbit_code(planes, K, column);
          if (image.sign_magnitude) code = kbit_to_sign_magnitude(code, K);
        }
#pragma unroll
        for (int bit = 0; bit < K; ++bit) {
          const KbitPlace at = kbit_place(K, e, bit);
          words[at.word] |= ((code >> bit) & uint32_t{1}) << at.bit;
        }
      }
    }
  }
}

// The scales of the blocks of a quarter of a unit, rows g and g + 8 of each: by lane t of a row.
template <ImageScale kScale>
__device__ void pack_scales(const KbitImage& image, const FlatRow (&rows)[2], int64_t chunk, int g,
                            int t, std::byte* unit) {
  constexpr int kBlocks = KbitImage::kUnitColumns / block_columns(kScale), kOwn = kBlocks / 4;
#pragma unroll
  for (int first = kOwn * t; first < kOwn * (t + 1); first += 2) {
    uint32_t scales = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t block = chunk * kBlocks + first + i / 2;
      if (rows[i % 2].scale != nullptr && block < image.k / block_columns(kScale))
        scales |= uint32_t{rows[i % 2].scale[block]} << (8 * i);
    }
    *reinterpret_cast<uint32_t*>(unit + image.scale_offset(g, first)) = scales;
  }
}

// This warp's unit of the image.
template <int K, ImageScale kScale>
__device__ inline void pack_unit(const KbitImage& image, const Source& source, std::byte* bytes) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  const int64_t units = image.num_strips() * image.units_along_k();
  const int64_t unit = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (unit >= units) return;
  const int64_t strip = unit / image.units_along_k(), chunk = unit % image.units_along_k();
  const FlatRow rows[2] = {{image, source, strip * KbitImage::kUnitRows + g},
                           {image, source, strip * KbitImage::kUnitRows + g + 8}};
  std::byte* const to = bytes + image.unit_offset(strip, chunk);
  const int64_t first_block = chunk * (KbitImage::kUnitColumns / kKbitBlock);
#pragma unroll 1
  for (int j = 0; j < KbitImage::kSteps; ++j) {
    uint32_t words[K];
    pack_step<K, kScale != ImageScale::kE4M4>(image, rows, first_block + 2 * j, t, words);
#pragma unroll
    for (int i = 0; i < K; ++i)
      *reinterpret_cast<uint32_t*>(to + KbitImage::word_offset(lane, j * K + i)) = words[i];
  }
  pack_scales<kScale>(image, rows, chunk, g, t, to);
}

template <int K, ImageScale kScale = ImageScale::kE4M4>
__global__ void pack_kernel(KbitImage image, Source source, std::byte* bytes) {
  pack_unit<K, kScale>(image, source, bytes);
}

}  // namespace dsv4::kbit_packing
