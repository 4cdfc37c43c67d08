// How a product of few tokens is divided over the GPU.
//
// Tiles of 64 rows go to clusters in runs of equal length; the slabs of a tile (128 bytes of every
// row; of bit planes 256 columns) to the ranks of the cluster. The number of ranks decides the
// order of additions, so it depends on the shape alone, never on the number of tokens; the number
// of clusters may. Where a row must also have the same bits in any part of a weight, it depends on
// the columns alone (Shape::by_columns).

#pragma once

#include <cstdint>

#include "dsv4/base/bits.h"

namespace dsv4::gemm {

// Weights x activations.
//   kFp8       e4m3 with block scales x e4m3 with a scale per 128 columns
//   kBf16      bf16 x bf16
//   kFp8Bf16   e4m3 with block scales x bf16: both are converted to f16
//   kKbit4, kKbit5          bit planes with e4m3_codebook(K) x e4m3 with a scale per 128 columns
//   kKbit4Bf16, kKbit5Bf16  the same x bf16: both are converted to f16
enum class Format { kFp8, kBf16, kFp8Bf16, kKbit4, kKbit4Bf16, kKbit5, kKbit5Bf16 };

// K of a k-bit format, else 0.
constexpr int bits_of(Format format) {
  if (format == Format::kKbit4 || format == Format::kKbit4Bf16) return 4;
  return format == Format::kKbit5 || format == Format::kKbit5Bf16 ? 5 : 0;
}
constexpr bool converts_to_f16(Format format) {
  return format == Format::kFp8Bf16 || format == Format::kKbit4Bf16 || format == Format::kKbit5Bf16;
}

inline constexpr int kTileRows = 64;
inline constexpr int kSlabBytes = 128;  // of a row
inline constexpr int kScaleColumns = 128;
inline constexpr int kBlock = 32, kBlocks = kScaleColumns / kBlock;  // of bit planes
inline constexpr int kPlaneColumns = 256;                            // of a slab of bit planes
inline constexpr int kMaxTokens = 64;                                // of a CTA
inline constexpr int kSlabSize = kTileRows * kSlabBytes;  // of weights that are not bit planes
inline constexpr int kMaxRanks = 8, kMaxStages = 8, kExchangeBuffers = 2;
// Scales of a rank's slabs are in the lanes of a warp; its activations in shared memory, or of more
// tokens than these in the ring, each group of columns beside the slab that it is multiplied with.
inline constexpr int kResidentTokens = 32;
inline constexpr int kMaxRankSlabs = 32;
inline constexpr int kMaxXBytes = 128 << 10;

constexpr int slab_columns(Format format) {
  return bits_of(format) > 0 ? kPlaneColumns : format == Format::kBf16 ? 64 : 128;
}
constexpr int slab_bytes(Format format) {
  return bits_of(format) > 0 ? kTileRows * slab_columns(format) * bits_of(format) / 8 : kSlabSize;
}
// Columns of x come in groups: those of a scale, or a slab of BF16 weights.
constexpr int slab_groups(Format format) {
  return bits_of(format) > 0 ? slab_columns(format) / kScaleColumns : 1;
}
// Rows of 128 bytes that a token has in a group: a block of 32 columns each for bit planes.
constexpr int x_boxes(Format format) {
  return (bits_of(format) > 0 ? 4 : 1) * (converts_to_f16(format) ? 2 : 1);
}

// Whether tiles of so many tokens take activations through the ring, as they are stored. Resident
// activations of 64 tokens in f16 would leave room for one CTA on an SM, and clusters of four such
// CTAs do not fill an H200 in one wave.
constexpr bool streams_x(int tokens) {
  return tokens > kResidentTokens;
}
// Activations of a group of columns, and what of them is in a stage of the ring.
constexpr int x_group_bytes(Format format, int tokens) {
  return x_boxes(format) * tokens * kSlabBytes;
}
constexpr int stage_bytes(Format format, int tokens) {
  return slab_bytes(format) + (streams_x(tokens) ? x_group_bytes(format, tokens) : 0);
}

struct Split {
  int rank_bits = 0;          // CTAs of a cluster: a power of two
  int slabs = 0;              // of a row of the weight
  int tiles = 0;              // of all groups and matrices
  int tiles_per_group = 1;    // of a block-diagonal weight; else all
  int tiles_per_cluster = 1;  // the tiles of a cluster are of one group
  int stage_slabs = 1;        // slabs of a stage; divides slabs
  int stages = 0;
  int prologue_bytes = 0;  // shared memory of the prologue

  DSV4_HD constexpr int ranks() const { return 1 << rank_bits; }
  DSV4_HD constexpr int clusters() const {
    return (tiles + tiles_per_cluster - 1) / tiles_per_cluster;
  }
  DSV4_HD constexpr int rank_slabs() const { return (slabs + ranks() - 1) >> rank_bits; }
  DSV4_HD constexpr int exchange_buffers() const {
    return tiles_per_cluster > 1 ? kExchangeBuffers : 1;
  }
};

// Offsets in bytes. The ring is at 0.
struct Layout {
  int x, exchange, exchange_bytes, x_scale, prologue, barriers, bytes;

  DSV4_HD constexpr Layout(Format format, int tokens, const Split& split)
      : x(split.stages * stage_bytes(format, tokens)),
        exchange(x +
                 (streams_x(tokens) ? 0 : groups(format, split) * x_group_bytes(format, tokens))),
        exchange_bytes(split.ranks() * token_pairs_of_rank(tokens, split.rank_bits) * kTileRows *
                       8),
        x_scale(exchange + split.exchange_buffers() * exchange_bytes),
        prologue(x_scale + (format != Format::kBf16 ? groups(format, split) * tokens * 4 : 0)),
        barriers(prologue + split.prologue_bytes),
        bytes(barriers + (2 * kMaxStages + 1 + 2 * kExchangeBuffers) * 8) {}

  // Token pairs that a rank adds up: token pair p belongs to rank p % ranks.
  DSV4_HD static constexpr int token_pairs_of_rank(int tokens, int rank_bits) {
    return (tokens / 2 + (1 << rank_bits) - 1) >> rank_bits;
  }
  // Groups of columns of x in a rank.
  DSV4_HD static constexpr int groups(Format format, const Split& split) {
    return split.rank_slabs() * slab_groups(format);
  }
};

struct Shape {
  Format format;
  int64_t tokens, k;               // k: of one group
  int64_t tiles, tiles_per_group;  // of all groups and matrices; of one group
  int64_t tiles_of_cluster = 1;    // a cluster has a multiple of this many
  int ctas_per_sm = 2;             // at most; three fit, if they need at most 75 KB each
  int prologue_bytes = 0;          // a multiple of 8
  bool stored_x = false;           // x is stored as it is multiplied: no CTA converts it
  // The ranks follow from k, neither from the rows nor from the format: whole rows of up to 1,024
  // columns, 4 shares up to 4,096, otherwise 8. For Context::need_batch_invariant.
  bool by_columns = false;
};

// Tokens of a CTA: 8, 16 or 32, of stored activations also 48 and 64; 2 or 8 of bit planes. 32
// tokens in f16 would be resident in twice the bytes, and leave a CTA alone on its SM.
constexpr int tile_tokens(Format format, int64_t tokens, bool stored_x) {
  if (bits_of(format) > 0) return tokens <= 2 ? 2 : 8;
  if (tokens <= 16) return tokens <= 8 ? 8 : 16;
  const bool resident = tokens <= kResidentTokens && !converts_to_f16(format);
  if (resident || !stored_x) return kResidentTokens;
  return tokens <= 48 ? 48 : kMaxTokens;
}
constexpr int tile_tokens(const Shape& shape) {
  return tile_tokens(shape.format, shape.tokens, shape.stored_x);
}

// Returns nullptr, or why no split fits: the rows of x are too long.
const char* reject(const Shape& shape);

Split make_split(const Shape& shape, int num_sms);

// Weights of two formats with the same columns, in one launch: clusters have the same number of
// CTAs, and of tiles as multiples of tiles_of_cluster. No tiles of a format: its split has none.
struct TwoSplits {
  Split q8, bf16;
};
TwoSplits make_two_splits(const Shape& q8, const Shape& bf16, int num_sms);

}  // namespace dsv4::gemm
