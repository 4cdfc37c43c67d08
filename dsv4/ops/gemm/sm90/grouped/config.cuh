// Sizes, parameters and shared memory of the grouped kernel (kernel.cuh).
//
// Tiles     a tile is the pairs of one expert, at most 128 of them (48 where blocks have scales),
//           that a CTA multiplies with kTileRows rows of the image at a time. Its number of columns
//           is rounded up to 16
// Slots     tiles have consecutive slots, as many as columns; a pair has one slot
// Rows      of x of a tile lie in the order in which wgmma reads them: steps of 64 values of K in
//           16 bits, or of 128 in e4m3. A step has a row of 128 bytes for every column of the tile,
//           with the 128-byte swizzle by the number of the column (device/ptx/smem_desc.cuh); in
//           e4m3 an f32 factor for every column follows. K is padded to 256 values with zeros.
//           What the columns without a pair hold does not matter

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/mbarrier.cuh"
#include "dsv4/device/sm90/limits.h"
#include "dsv4/device/sm90/ring.cuh"
#include "dsv4/ops/gemm/sm90/experts/entries.h"
#include "dsv4/ops/gemm/weights/kbit_image_scaled.cuh"

namespace dsv4::gemm::grouped {

inline constexpr int kTileRows = 256, kTileStrips = kTileRows / kUnitRows;
inline constexpr int kClasses = 8;  // of tiles, by their number of columns

// How pairs become tiles: class c has most - c * step columns.
struct Tiling {
  int most, step;

  DSV4_HD constexpr int columns_of(int pairs) const { return (pairs + step - 1) / step * step; }
  DSV4_HD constexpr int class_of(int columns) const { return (most - columns) / step; }
};
inline constexpr Tiling kWideTiles{128, 16}, kBlockTiles{48, 16};
static_assert(kWideTiles.most == kClasses * kWideTiles.step);
static_assert(kBlockTiles.most <= kClasses * kBlockTiles.step);

// The operands of the tensor cores, and how rows of x' lie.
//   kF16, kBf16   one sum over all of K; 256 rows of the image at a time
//   kE4m3         codes of Q8. In 16 columns those of a lane's register lie next to each other:
//                 position 4t + 2c + p has column 2t + 8c + p. Sums are promoted to f32 every 128
//                 columns, times the factor of the group, or with scales of blocks every 32
//                 columns; 128 rows of the image at a time, in two passes
enum class XForm : uint8_t { kF16, kBf16, kE4m3 };
inline constexpr int kSwizzledBytes = 128;  // of a column in a step
DSV4_HD constexpr int steps_of_unit(XForm form) {
  return form == XForm::kE4m3 ? 2 : 4;
}
// The number of units of a row in e4m3 is a multiple of this.
inline constexpr int kUnitsAtOnce = 2;
DSV4_HD constexpr int column_bytes(XForm form) {  // in a step
  return kSwizzledBytes + (form == XForm::kE4m3 ? 4 : 0);
}

inline constexpr int kConsumerWarps = 8, kEpilogueWarps = 4;
inline constexpr int kFirstEpilogueWarp = kConsumerWarps;
inline constexpr int kCodesWarp = kFirstEpilogueWarp + kEpilogueWarps, kXWarp = kCodesWarp + 1;
inline constexpr int kThreads = 16 * kWarp;
inline constexpr int kConsumerRegisters = 208, kEpilogueRegisters = 56, kProducerRegisters = 40;
static_assert(2 * kConsumerRegisters + kEpilogueRegisters + kProducerRegisters == 512);

struct alignas(16) Tile {
  int32_t expert, first_slot, pairs, columns;
};

// Bytes of a slot.
DSV4_HD constexpr int64_t row_bytes(XForm form, int chunks) {
  return int64_t{chunks} * steps_of_unit(form) * column_bytes(form);
}
// From the first slot of a tile of `columns`: vector `v` of 16 bytes of K of column `column`.
DSV4_HD constexpr int64_t vector_at(XForm form, int columns, int column, int v) {
  return int64_t{v / 8} * columns * column_bytes(form) + column * kSwizzledBytes +
         (v % 8 ^ column % 8) * 16;
}
// Its factor in a step of e4m3.
DSV4_HD constexpr int64_t factor_at(int columns, int column, int step) {
  return int64_t{step} * columns * column_bytes(XForm::kE4m3) + columns * kSwizzledBytes +
         column * 4;
}

// Gate and up, or down. Pointers are to device memory.
struct Product {
  experts::ImagePlaces images;
  int strips, chunks;        // of an image: rows / 16, columns / 256
  int row_tiles;             // tiles of kTileRows rows
  KbitTable table;           // the codebook
  float factor;              // what all sums lack: the table's unit, and 16 for the scales
  const std::byte* x;        // [slots] rows of x, see above
  int64_t slot_bytes;        // from one slot to the next, at least row_bytes()
  const float* factors;      // [slots] what a column's sums lack
  const int32_t* exponents;  // [e, 3] e4m3: the largest exponent byte of w1, w3, w2
  int rows;                  // of one weight: of gate, or of down
};

struct Params {
  Product gate_up, down;
  bool has_gate_up, has_down;  // what this launch computes
  const Tile* tiles;           // in order of their classes
  const int32_t* class_first;  // [kClasses + 1] the first tile of each class, and the end of all
  int32_t* done;               // [tiles] items of gate and up whose h' is stored; begins at 0
  const float* scale2;         // [e, 3]: of w1, w3, w2

  const float* pair_weight;  // [slots]
  float limit;               // of SwiGLU
  XForm hidden_form;         // h' = h in bf16, codes and factors in e4m3, and in f16
  int hidden_exponent;       // h' = h * 2^hidden_exponent / pow2ceil(weight)
  std::byte* hidden;         // [slots] rows of h', which are down's x
  // Instead of h', if not null: h as it is, [pairs, h_stride], in order of expert. h_stride and the
  // rows of gate are multiples of 4.
  bf16* h;
  int64_t h_stride;
  Mirrors h_mirrors;
  const int32_t* first_pair;  // [tiles] pairs before each tile, with h
  bf16* y;                    // [slots, y_stride]
  int64_t y_stride;
  const int32_t* y_row;  // [slots] the row of y instead of the slot; or null
};

// The part of a product that a CTA computes at a time.
struct Item {
  Tile tile;
  int tile_index;
  bool down;
  int first_strip, strips;  // of the image; those that exist, at most kTileStrips

  // index: of the item among those of the product whose tiles begin with `first_tile`
  __device__ Item(const Params& p, bool is_down, int first_tile, int index) : down(is_down) {
    const Product& product = is_down ? p.down : p.gate_up;
    tile_index = first_tile + index / product.row_tiles;
    tile = p.tiles[tile_index];
    first_strip = index % product.row_tiles * kTileStrips;
    strips = max(0, min(kTileStrips, product.strips - first_strip));
  }
};

// The items of a CTA: blockIdx.x, blockIdx.x + gridDim.x, .. of all in order of product, class,
// tile and row tile. The largest come first.
class Walk {
 public:
  // Calls body(item) for those of a class.
  template <class Body>
  __device__ void visit(const Params& p, bool down, int item_class, const Body& body) {
    if (!(down ? p.has_down : p.has_gate_up)) return;
    const int first = p.class_first[item_class];
    const int items =
        (p.class_first[item_class + 1] - first) * (down ? p.down.row_tiles : p.gate_up.row_tiles);
    for (; at_ < items; at_ += static_cast<int>(gridDim.x)) body(Item(p, down, first, at_));
    at_ -= items;
  }
  template <class Body>
  __device__ void visit_all(const Params& p, const Body& body) {
#pragma unroll 1
    for (int i = 0; i < 2 * kClasses; ++i) visit(p, i >= kClasses, i % kClasses, body);
  }

 private:
  int at_ = static_cast<int>(blockIdx.x);  // from the first item of the class
};

template <class Weights>
inline constexpr XForm kXForm = std::is_same_v<typename Weights::Operand, f16>    ? XForm::kF16
                                : std::is_same_v<typename Weights::Operand, bf16> ? XForm::kBf16
                                                                                  : XForm::kE4m3;
// Whether the scales of blocks are factors of sums, not in the operands (in_blocks.cuh).
template <class Weights>
inline constexpr bool kScalesBlocks = requires {
  requires Weights::kScalesBlocks;
};
template <class Weights>
inline constexpr Tiling kTiling = kScalesBlocks<Weights> ? kBlockTiles : kWideTiles;

// With scales of blocks, chunks of K are multiplied in the order of the sums of experts_e4m3, whose
// warpgroup j has the chunks j, j + 4, ..
inline constexpr int kChunkGroups = 4;
template <class Weights, class Body>
__device__ void visit_chunks(int chunks, const Body& body) {
  if constexpr (!kScalesBlocks<Weights>) {
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) body(chunk);
  } else {
#pragma unroll 1
    for (int first = 0; first < kChunkGroups; ++first)
#pragma unroll 1
      for (int chunk = first; chunk < chunks; chunk += kChunkGroups) body(chunk);
  }
}

// The rows of an item are computed in so many passes over K.
template <class Weights>
inline constexpr int kPasses = kXForm<Weights> == XForm::kE4m3 ? 2 : 1;

inline constexpr int kStagedBytes = kTileRows * 2;  // of a column

// Vector `v` of 8 image rows of a column, in bf16.
DSV4_HD constexpr int staged_at(int column, int v) {
  return column * kStagedBytes + (v ^ column % 8) * 16;
}

// Shared memory of a step of x of so many columns: swizzled rows begin on 1,024 bytes.
DSV4_HD constexpr int step_bytes(XForm form, int columns) {
  return (columns * column_bytes(form) + 1023) / 1024 * 1024;
}

template <class Weights>
struct Shared {
  static constexpr XForm kForm = kXForm<Weights>;
  static constexpr int kPassStrips = kTileStrips / kPasses<Weights>;
  static constexpr int kStageBytes = kPassStrips * Weights::kSlabBytes;
  static constexpr int kColumns = kTiling<Weights>.most;  // of the largest tile
  // A stage of x has a step of the largest tile, with scales of blocks all steps of a unit.
  static constexpr int kXStages = kScalesBlocks<Weights> ? 6 : 4;
  static constexpr int kXBytes =
      step_bytes(kForm, kColumns) * (kScalesBlocks<Weights> ? steps_of_unit(kForm) : 1);
  // Items whose factors are there: when the last x of an item is released, its factors are still
  // needed, and each stage may have another item.
  static constexpr int kFactors = 8;
  static_assert(kFactors > kXStages);
  static constexpr int kTotals =
      kScalesBlocks<Weights> ? kColumns / 2 * kConsumerWarps * kWarp : kWarp;
  static constexpr int kOtherBytes = kXStages * kXBytes + kColumns * (kStagedBytes + kFactors * 4) +
                                     2 * static_cast<int>(sizeof(TableCopies)) + 4 * kTotals + 1024;
  static constexpr int kCodeStages = std::min(8, (sm90::kMaxSmem - kOtherBytes) / kStageBytes);
  static_assert(kCodeStages >= 2);

  // Steps of a unit in a stage of x, of tiles of so many columns. In 16 bits a step of few columns
  // is soon multiplied, and four stages of one step would not cover the time that a copy takes.
  DSV4_HD static constexpr int x_steps(int columns) {
    if (kForm == XForm::kE4m3) return kScalesBlocks<Weights> ? steps_of_unit(kForm) : 1;
    int steps = steps_of_unit(kForm);
    while (steps > 1 && steps * step_bytes(kForm, columns) > kXBytes) steps /= 2;
    return steps;
  }

  alignas(1024) unsigned char x[kXStages][kXBytes];
  // Sums of an item times their factors, on their way to the epilogue.
  alignas(128) unsigned char staging[kColumns * kStagedBytes];
  alignas(128) unsigned char codes[kCodeStages][kStageBytes];
  alignas(16) float factors[kFactors][kColumns];  // of the columns of items, in turn
  float totals[kTotals];  // in_blocks.cuh: of each consumer thread, apart by their number
  TableCopies tables[2];  // of gate and up, of down
  // full: the bytes have landed; empty: all consumer warps have read them
  ptx::Mbarrier code_full[kCodeStages], code_empty[kCodeStages];
  ptx::Mbarrier x_full[kXStages], x_empty[kXStages];
  // full: all consumer warps have stored; empty: all epilogue warps have read
  ptx::Mbarrier staging_full, staging_empty;
};

}  // namespace dsv4::gemm::grouped
