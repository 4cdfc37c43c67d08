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

#include "dsv4/device/ptx/mbarrier.cuh"
#include "dsv4/ops/sparse_mla/row_lists.cuh"

namespace dsv4::sm90_bf16 {

constexpr int kHeads = 64, kKeys = 64;
constexpr int kPieceWidth = 64, kPieceRow = 2 * kPieceWidth, kPieceBytes = kKeys * kPieceRow;
constexpr int kValuePieces = 8;  // d_v = 512; a ninth piece (RoPE of V3.2) is key only
constexpr int kParts = 4;
constexpr int kValueWidth = kValuePieces * kPieceWidth;
constexpr int kHalf = kValueWidth / 2;  // output columns of a group
constexpr int kGroup = 128;             // threads of a warpgroup
constexpr int kGroupWarps = kGroup / kWarp;
constexpr int kThreads = 3 * kGroup;  // two groups of consumers, then the producer
// Registers of a thread: three threads of the groups have 504 to share.
constexpr int kConsumerRegisters = 216, kProducerRegisters = 72;

struct Inputs {
  PagedList window, compressed;
  const bf16* q;      // [b, s_q, h, d]
  void* out;          // [b, s_q, h, 512]
  float* lse;         // [b, h, s_q] or null
  float* max_logits;  // [b, h, s_q] or null
  const float* sink;  // [h] or null
  QueryStrides q_at, out_at, lse_at, max_at;
  float scale;
  bool normalized;
  int heads;
  int items;  // b * s_q * head_blocks
  Divisor head_blocks, s_q;
};

// One block's share: a query and 64 of its heads. Blocks of one query are neighbours, so that the
// second finds the rows in L2.
struct Item {
  int request, slot, first_head;
  int window, compressed;  // slots of the lists that count
  const int32_t *window_ids, *compressed_ids;

  __device__ Item(const Inputs& in, int index) {
    const uint32_t query = in.head_blocks.divide(index);
    first_head = static_cast<int>(index - query * in.head_blocks.divisor) * kHeads;
    request = static_cast<int>(in.s_q.divide(query));
    slot = static_cast<int>(query - request * in.s_q.divisor);
    window = list_length(in.window.list, request);
    compressed = list_length(in.compressed.list, request);
    window_ids = ids(in.window.list);
    compressed_ids = ids(in.compressed.list);
  }

  // An even number, so that tile i is group i % 2's whatever came before: the order in which dots
  // add up is the owner's. What an odd list lacks is a tile without keys, and so has a query
  // without slots.
  __device__ int tiles() const {
    return 2 * max(1, (window + compressed + 2 * kKeys - 1) / (2 * kKeys));
  }

  __device__ int64_t at(const QueryStrides& strides, int head) const {
    return request * strides.request + slot * strides.slot + head * strides.head;
  }

 private:
  __device__ const int32_t* ids(const ListPointer& list) const {
    return list.rows + request * list.request_stride + slot * list.slot_stride;
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
  ptx::Mbarrier full[2][kParts], free[2][kParts];  // of a buffer
  ptx::Mbarrier rope_free[2];
  ptx::Mbarrier ready[2][kGroupWarps];  // weights and summary of a warp of a group

  __device__ void init() {
    q_free.init(2 * kGroupWarps);
    q_full.init(kGroup);
    for (int b = 0; b < 2; ++b) {
      // The last part to be filled also tells that `valid` is written.
      for (int p = 0; p < kParts; ++p) {
        full[b][p].init(kGroup + (p == kParts - 1 ? kGroupWarps : 0));
      }
      for (ptx::Mbarrier& barrier : free[b]) barrier.init(kGroupWarps);
      rope_free[b].init(kGroupWarps);
      for (ptx::Mbarrier& barrier : ready[b]) barrier.init(kWarp);
    }
    ptx::fence_mbarrier_init();
  }
};

// A tile is filled, multiplied and freed in parts of two value pieces, in the order in which they
// get free: columns of the group that owns the tile, then those of the other (2026-11-21: 10 %
// fewer clocks than one order for all tiles). The key-only piece is free first and comes with part
// 0.
constexpr bool has_rope(int pieces, int part) {
  return pieces > kValuePieces && part == 0;
}
__device__ constexpr int first_piece(int part, int owner) {
  return (part < kParts / 2 ? owner : 1 - owner) * (kValuePieces / 2) + part % 2 * 2;
}

// Phase of use number tile / 2 of a buffer.
__device__ inline uint32_t phase(uint32_t tile) {
  return tile / 2 % 2;
}

}  // namespace dsv4::sm90_bf16
