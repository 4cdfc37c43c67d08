// Codes of an image (formats/kbit_image.h) whose codebook is on the e4m3 grid, as A fragments of
// wgmma m64nNk32, for tiles of many pairs whose sums are scaled block by block: what
// kbit_image_e4m3 decodes for few pairs, half a unit at a time. Blocks have 32 columns, so NVFP4 is
// not among them.

#pragma once

#include "dsv4/ops/gemm/weights/kbit_image_e4m3.cuh"
#include "dsv4/ops/gemm/weights/kbit_image_scaled.cuh"

namespace dsv4::gemm {

// What a lane has of 128 columns of a unit.
template <int K, ImageScale kScale>
class KbitImageBlocks {
 public:
  using Operand = __nv_fp8_e4m3;
  static constexpr int kSlabBytes = kUnitBytes<K, kScale>;
  static constexpr bool kScalesBlocks = true;  // sums are scaled, block by block
  static constexpr int kBlock = block_columns(kScale);
  static_assert(kBlock == kProductColumns);

  // The codebook in registers of the thread.
  struct Table {
    uint32_t low[2];

    __device__ explicit Table(const TableCopies& from) {
      const int lane = static_cast<int>(threadIdx.x) % kWarp;
      low[0] = from.low[0][lane], low[1] = from.low[K == 2 ? 0 : 1][lane];
    }
  };

  // unit: in shared memory; half: 0 or 1
  __device__ void load(const unsigned char* unit, int half) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const auto* const codes = reinterpret_cast<const uint2*>(unit) + 2 * lane;
#pragma unroll
    for (int i = 0; i < K; ++i) {  // pairs of words: two in each vector of 16 bytes
      const int pair = half * K + i;
      const uint2 two = codes[pair / 2 * 2 * kWarp + pair % 2];
      words_[2 * i] = two.x, words_[2 * i + 1] = two.y;
    }
    const uint2 scales = *reinterpret_cast<const uint2*>(
        unit + 512 * K + lane / 4 * (2 * kUnitColumns / kBlock) + half * 8);
    scales_.words[0] = scales.x, scales_.words[1] = scales.y;
  }
  // The fragment of a block of the half.
  __device__ void decode(const Table& table, int block, uint32_t (&a)[4]) const {
    decode_block<K>(table, words_ + block / 2 * K, block % 2, a);
  }
  // The scales of the half.
  struct Scales {
    uint32_t words[2];

    __device__ float2 of(int block) const {
      return image_scales<kScale>(words[block / 2] >> (16 * (block % 2)));
    }
  };
  __device__ Scales scales() const {
    return scales_;
  }

 private:
  uint32_t words_[2 * K];
  Scales scales_;
};

}  // namespace dsv4::gemm
