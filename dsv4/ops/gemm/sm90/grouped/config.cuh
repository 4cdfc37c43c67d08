// Sizes, parameters and shared memory of the grouped kernel (kernel.cuh).
//
// Tiles     a tile is the pairs of one expert, at most kMostColumns of them,
// that a CTA multiplies
//           with kTileRows rows of the image at a time. Its number of columns
//           is rounded up to 16
// Slots     tiles have consecutive slots, as many as columns; a pair has one
// slot Rows of x of a tile lie in the order in which wgmma reads them: blocks
// of 64 values of K, in each
//           a row of 128 bytes for every column of the tile, with the 128-byte
//           swizzle by the number of the column (device/ptx/smem_desc.cuh). K
//           is padded to 256 values with zeros. What the columns without a pair
//           hold does not matter

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/mbarrier.cuh"
#include "dsv4/device/sm90/limits.h"
#include "dsv4/device/sm90/ring.cuh"
#include "dsv4/ops/gemm/weights/kbit_image_table.h"

namespace dsv4::gemm::grouped {

inline constexpr int kTileRows = 256, kTileStrips = kTileRows / kUnitRows;
inline constexpr int kMostColumns = 128, kColumnStep = 16;
inline constexpr int kBlockColumns = 64,
                     kBlockBytes = 128;                      // of K, and of a row
inline constexpr int kSteps = kUnitColumns / kBlockColumns;  // blocks of a unit

inline constexpr int kConsumerWarps = 8, kConsumers = kConsumerWarps * kWarp;
inline constexpr int kThreads = kConsumers + 4 * kWarp;
inline constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;

struct alignas(16) Tile {
  int32_t expert, first_slot, pairs, columns;
};

// Bytes of K of a slot's row.
DSV4_HD constexpr int64_t row_bytes(int chunks) {
  return int64_t{chunks} * kSteps * kBlockBytes;
}
// From the first slot of a tile: 16 bytes of K, vector `v` of 8 values, of
// column `column`.
DSV4_HD constexpr int64_t vector_at(int columns, int column, int v) {
  return (int64_t{v / 8} * columns + column) * kBlockBytes + (v % 8 ^ column % 8) * 16;
}

// Gate and up, or down. Pointers are to device memory.
struct Product {
  const std::byte* images;  // [e] kernel images
  int64_t image_bytes;      // from one expert to the next
  int strips, chunks;       // of an image: rows / 16, columns / 256
  int row_tiles;            // tiles of kTileRows rows
  KbitTable table;          // the codebook
  float factor;             // what all sums lack: the table's unit, and 16 for the scales
  const std::byte* x;       // [slots] rows of x, see above
  const float* column;      // [slots] what a column's sums lack
  int rows;                 // of one weight: of gate, or of down
};

struct Params {
  Product gate_up, down;
  bool has_gate_up, has_down;  // what this launch computes
  const Tile* tiles;
  const int32_t* num_tiles;
  int32_t* done;        // [tiles] items of gate and up whose h' is stored; 0 before
                        // the launch
  const float* scale2;  // [e, 3]: of w1, w3, w2

  const float* pair_weight;  // [slots]
  float limit;               // of SwiGLU
  int hidden_exponent;       // h' = h * 2^hidden_exponent / pow2ceil(weight)
  std::byte* hidden;         // [slots] rows of h', which are down's x
  bf16* y;                   // [slots, y_stride]
  int64_t y_stride;
};

// The part of a product that a CTA computes at a time.
struct Item {
  Tile tile;
  int tile_index;
  bool down;
  int first_strip,
      strips;  // of the image; those that exist, at most kTileStrips

  // index: within the product
  __device__ Item(const Params& p, bool is_down, int index) : down(is_down) {
    const Product& product = is_down ? p.down : p.gate_up;
    tile_index = index / product.row_tiles;
    tile = p.tiles[tile_index];
    first_strip = index % product.row_tiles * kTileStrips;
    strips = max(0, min(kTileStrips, product.strips - first_strip));
  }
  __device__ int64_t slot_bytes(int chunks) const { return tile.first_slot * row_bytes(chunks); }
};

inline constexpr int kXStages = kSteps;
inline constexpr int kStagingBytes = 32 << 10;

struct Column {
  float factor, weight;
};

template <class Weights>
struct Shared {
  static constexpr int kStageBytes = kTileStrips * Weights::kSlabBytes;
  static constexpr int kOtherBytes = kXStages * kMostColumns * kBlockBytes + kStagingBytes + 6144;
  static constexpr int kCodeStages = std::min(4, (sm90::kMaxSmem - kOtherBytes) / kStageBytes);
  static_assert(kCodeStages >= 2);

  alignas(1024) unsigned char x[kXStages][kMostColumns * kBlockBytes];
  alignas(1024) unsigned char staging[kStagingBytes];  // of the epilogue
  alignas(128) unsigned char codes[kCodeStages][kStageBytes];
  Column columns[kMostColumns];                        // of the current item
  uint32_t largest[kConsumerWarps][kMostColumns / 2];  // of pairs of columns, bf16
  float2 inverse[kMostColumns / 2];                    // of pairs of columns
  uint32_t power[kMostColumns / 2];                    // f16
  // full: the bytes have landed; empty: all consumer warps have read them
  ptx::Mbarrier code_full[kCodeStages], code_empty[kCodeStages];
  ptx::Mbarrier x_full[kXStages], x_empty[kXStages];
};

// All consumer warps.
inline constexpr int kConsumersBarrier = 1;

}  // namespace dsv4::gemm::grouped
