// What the warps of sm90_bf16.cu agree on: the work of a block, its shared memory, its barriers.
//
// A block of 64 heads walks over a query's keys in tiles of 64. A tile is cut along d into pieces
// of 64 values, which is a row of 128 bytes: one swizzled wgmma operand of 8 KiB.
//
//   producer     gathers q and tiles 0, 1, 2, ...; tile i goes to buffer i % 2
//   group 0, 1   group i % 2 makes the weights of tile i and shares them; each adds tile i to its
//                half of the output columns
//
// Tiles are counted over all queries of a block, so that the next query's first tile is under way
// while the last one ends.

#pragma once

#include <cstdint>

#include "dsv4/base/bits.h"
#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/mbarrier.cuh"

namespace dsv4::sm90_bf16 {

constexpr int kHeads = 64, kKeys = 64;
constexpr int kPieceWidth = 64, kPieceBytes = kKeys * kPieceWidth * 2;
constexpr int kValuePieces = 8;  // d_v = 512; a ninth piece (RoPE of V3.2) is key only
constexpr int kParts = 4;
constexpr int kValueWidth = kValuePieces * kPieceWidth;
constexpr int kHalf = kValueWidth / 2;  // output columns of a group
constexpr int kGroup = 128;             // threads of a warpgroup
constexpr int kGroupWarps = kGroup / kWarp;
constexpr int kThreads = 3 * kGroup;  // two groups of consumers, then the producer

// n / divisor for n < 2^31 as one multiplication: with divisor <= 2^bits, the factor
// 2^(31 + bits) / divisor + 1 is exact enough.
class Divisor {
 public:
  Divisor() = default;
  explicit Divisor(int divisor) {
    while ((int64_t{1} << bits_) < divisor) ++bits_;
    const uint64_t power = uint64_t{1} << (31 + bits_);
    factor_ = static_cast<uint32_t>(power / static_cast<uint32_t>(divisor) + 1);
  }
  __device__ uint32_t divide(uint32_t n) const {
    return static_cast<uint32_t>(uint64_t{n} * factor_ >> (31 + bits_));
  }

 private:
  uint32_t factor_ = 0;
  int bits_ = 0;
};

// One list of rows of all queries; slots = 0: no such list.
struct Rows {
  const bf16* pages;
  int64_t page_stride;  // values
  uint32_t page_entries, num_rows;
  Divisor page_of;
  const int32_t* ids;      // [b, s_q, slots]
  int64_t request, query;  // strides of ids
  const int32_t* lengths;  // [b] or null
  int slots;
};

struct Strides {
  int64_t request, query, head;
};

struct Inputs {
  Rows window, compressed;
  const bf16* q;      // [b, s_q, h, d]
  void* out;          // [b, s_q, h, 512]
  float* lse;         // [b, h, s_q] or null
  float* max_logits;  // [b, h, s_q] or null
  const float* sink;  // [h] or null
  Strides q_at, out_at, lse_at, max_at;
  float scale;
  bool normalized;
  int heads, head_blocks, s_q;
  int64_t queries;  // b * s_q

  __device__ int64_t num_items() const { return queries * head_blocks; }
};

// One block's share: a query and 64 of its heads. Blocks of one query are neighbours, so that the
// second finds the rows in L2.
struct Item {
  int64_t request;
  int query, first_head;
  int window, compressed;  // slots that count
  const int32_t *window_ids, *compressed_ids;

  __device__ Item(const Inputs& in, int64_t index) {
    const int64_t query_of_all = index / in.head_blocks;
    first_head = static_cast<int>(index % in.head_blocks) * kHeads;
    request = query_of_all / in.s_q;
    query = static_cast<int>(query_of_all % in.s_q);
    window = slots(in.window);
    compressed = slots(in.compressed);
    window_ids = ids(in.window);
    compressed_ids = ids(in.compressed);
  }

  // A query without slots has one tile without keys.
  __device__ int tiles() const {
    return max(1, static_cast<int>(ceil_div(window + compressed, kKeys)));
  }

 private:
  __device__ const int32_t* ids(const Rows& rows) const {
    return rows.ids + request * rows.request + query * rows.query;
  }
  __device__ int slots(const Rows& rows) const {
    if (rows.slots == 0 || rows.lengths == nullptr) return rows.slots;
    return max(0, min(rows.slots, rows.lengths[request]));
  }
};

struct alignas(1024) Piece {
  uint8_t bytes[kPieceBytes];  // [64 keys or heads, 64] bf16, swizzled
};

template <int kPieces>
struct Shared {
  static constexpr bool kRope = kPieces > kValuePieces;

  Piece q[kPieces];
  Piece keys[2][kPieces];
  // From the group that owns a tile to the same thread of the other: its fragments of the weights,
  // and for its two rows the largest dot so far and its sums of weights.
  uint4 weights[kKeys / 16][kGroup];
  float4 summary[kGroup];
  uint16_t valid[2][kGroupWarps];  // a bit per key of a buffer
  ptx::Mbarrier q_full, q_free;
  ptx::Mbarrier full[2][kPieces];       // of a buffer
  ptx::Mbarrier free[2][2 + kRope];     // pieces 0-3, 4-7, the key-only piece
  ptx::Mbarrier ready[2][kGroupWarps];  // weights and summary of a warp of a group

  __device__ void init() {
    q_full.init(kGroup);
    q_free.init(2 * kGroupWarps);
    for (int b = 0; b < 2; ++b) {
      // The last part to be filled also tells that `valid` is written.
      for (int p = 0; p < kParts; ++p)
        full[b][p].init(kGroup + (p == kParts - 1 ? kGroupWarps : 0));
      for (ptx::Mbarrier& barrier : free[b]) barrier.init(kGroupWarps);
      for (ptx::Mbarrier& barrier : ready[b]) barrier.init(1);
    }
    ptx::fence_mbarrier_init();
  }
};

// Pieces in the order in which they are filled and multiplied: the key-only piece is free first.
template <int kPieces>
__device__ constexpr int piece_in_order(int i) {
  return (i + kValuePieces) % kPieces;
}

// A tile arrives in kParts parts of two value pieces; the key-only piece comes with the first. The
// place in the order of a part's first piece:
template <int kPieces>
__device__ constexpr int first_of_part(int part) {
  return part == 0 ? 0 : 2 * part + kPieces - kValuePieces;
}

// Phase of use number tile / 2 of a buffer.
__device__ inline uint32_t phase(uint32_t tile) {
  return tile / 2 % 2;
}

}  // namespace dsv4::sm90_bf16
