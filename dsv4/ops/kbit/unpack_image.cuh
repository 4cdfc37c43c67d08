// The kernels of repack_image_cuda.cu: the packing kernel of pack_image.cuh with a codebook that is
// read on the device, and its inverse. A warp has a unit of 16 rows x 256 columns; the four lanes
// of a row have its codes of a block, and the first of them writes the words.

#pragma once

#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/ops/kbit/pack_image.cuh"

namespace dsv4::kbit_packing {

// Whether codes are stored as sign and magnitude: Codebook::antisymmetric(), by a whole warp.
__device__ inline bool is_antisymmetric(const float* codebook, int bits) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, size = 1 << bits;
  uint32_t sum = 0;
  if (lane < size)
    sum = (__float_as_uint(codebook[lane]) ^ 0x80000000u) ^
          __float_as_uint(codebook[size - 1 - lane]);
  return __reduce_or_sync(~0u, sum) == 0;
}

// rows [n, k]
struct ImageRows {
  uint32_t* planes;
  uint8_t* scale;
};

template <int K, bool kFp4>
__device__ inline void unpack_step(const KbitImage& image, const uint32_t (&words)[K], int t,
                                   int64_t first_row, int64_t first_block, uint32_t* planes) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      uint32_t own[K] = {};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int e = b * 16 + i / 4 * 8 + 4 * h + i % 4;
        uint32_t code = 0;
#pragma unroll
        for (int bit = 0; bit < K; ++bit) {
          const KbitPlace at = kbit_place(K, e, bit);
          code |= ((words[at.word] >> at.bit) & 1u) << bit;
        }
        const int column = kbit_fragment(t, e).column - 32 * b;
        if constexpr (kFp4) {
          own[kbit_fragment(0, e).column / 8 - 4 * b] |= code << (column % 8 * 4);
        } else {
          if (image.sign_magnitude) code = kbit_from_sign_magnitude(static_cast<uint8_t>(code), K);
#pragma unroll
          for (int p = 0; p < K; ++p) own[p] |= ((code >> p) & 1u) << column;
        }
      }
      const int64_t row = first_row + 8 * h, block = first_block + b;
#pragma unroll
      for (int p = 0; p < K; ++p) {
        own[p] |= __shfl_xor_sync(~0u, own[p], 1);
        own[p] |= __shfl_xor_sync(~0u, own[p], 2);
        if (t == 0 && row < image.n && block < image.k / kKbitBlock)
          planes[(row * (image.k / kKbitBlock) + block) * K + p] = own[p];
      }
    }
  }
}

template <int K, ImageScale kScale = ImageScale::kE4M4>
__global__ void unpack_kernel(KbitImage image, const float* codebook, const std::byte* bytes,
                              ImageRows to) {
  ptx::pdl_start();
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4, t = lane % 4;
  constexpr bool kFp4 = kScale != ImageScale::kE4M4;
  const int64_t units = image.num_strips() * image.units_along_k();
  const int64_t unit = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (unit >= units) return;
  if constexpr (!kFp4) image.sign_magnitude = is_antisymmetric(codebook, K);
  const int64_t strip = unit / image.units_along_k(), chunk = unit % image.units_along_k();
  const std::byte* const from = bytes + image.unit_offset(strip, chunk);
  const int64_t first_row = strip * KbitImage::kUnitRows + g;
  const int64_t first_block = chunk * (KbitImage::kUnitColumns / kKbitBlock);
#pragma unroll 1
  for (int j = 0; j < KbitImage::kSteps; ++j) {
    uint32_t words[K];
#pragma unroll
    for (int i = 0; i < K; ++i)
      words[i] = *reinterpret_cast<const uint32_t*>(from + KbitImage::word_offset(lane, j * K + i));
    unpack_step<K, kFp4>(image, words, t, first_row, first_block + 2 * j, to.planes);
  }
  constexpr int kBlocks = KbitImage::kUnitColumns / block_columns(kScale);
  const int64_t row_blocks = image.k / block_columns(kScale);
  for (int i = lane; i < KbitImage::kUnitRows * kBlocks; i += kWarp) {
    const int64_t row = strip * KbitImage::kUnitRows + i / kBlocks;
    const int64_t block = chunk * kBlocks + i % kBlocks;
    if (row < image.n && block < row_blocks)
      to.scale[row * row_blocks + block] =
          static_cast<uint8_t>(from[image.scale_offset(i / kBlocks, i % kBlocks)]);
  }
}

template <int K, ImageScale kScale = ImageScale::kE4M4>
__global__ void pack_by_codebook_kernel(KbitImage image, const float* codebook, Source source,
                                        std::byte* bytes) {
  ptx::pdl_start();
  if constexpr (kScale == ImageScale::kE4M4) image.sign_magnitude = is_antisymmetric(codebook, K);
  pack_unit<K, kScale>(image, source, bytes);
}

}  // namespace dsv4::kbit_packing
