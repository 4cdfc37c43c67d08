// The producer of sm90_bf16.cu: a warpgroup that copies q and listed rows into swizzled pieces.
//
// Warp w has rows 16 w .. 16 w + 15 of a tile; lanes 8 k .. 8 k + 7 copy the 128 bytes of a piece
// of row 16 w + 4 k + i, for i = 0 .. 3. Rows that do not count are filled with zeros, because
// 0 * NaN is not 0. Ids are read a tile ahead. Whatever is computed here per tile delays its
// copies: no division, and one list or the other for a whole tile where that can be said.

#pragma once

#include "dsv4/device/ptx/cp_async.cuh"
#include "dsv4/device/ptx/shared_memory.cuh"
#include "dsv4/ops/sparse_mla/sm90_bf16_plan.cuh"

namespace dsv4::sm90_bf16 {

constexpr int kLaneRows = 4;

// Where a lane's bytes come from.
struct Sources {
  const uint8_t* rows[kLaneRows];
  bool valid[kLaneRows];
};

// A tile of a query.
struct TileOf {
  Item item;
  int tile;
};

struct Gather {
  const Inputs& in;
  int lane, first_row;

  __device__ explicit Gather(const Inputs& inputs)
      : in(inputs),
        lane(static_cast<int>(threadIdx.x) % kWarp),
        first_row(static_cast<int>(threadIdx.x) % kGroup / 8 * kLaneRows) {}

  __device__ int first_byte() const { return lane % 8 * 16; }

  // Starts the copies of one piece.
  __device__ void copy(const Sources& from, int piece, Piece& to) const {
    const uint32_t base = ptx::smem_address(&to);
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      const int row = first_row + i;
      const uint32_t at = kPieceRow * row + 16 * (lane % 8 ^ row % 8);
      ptx::cp_async_zfill(base + at, from.rows[i] + piece * kPieceRow, from.valid[i]);
    }
  }

  __device__ Sources queries(const Item& item) const {
    Sources from;
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      const int head = item.first_head + first_row + i;
      from.valid[i] = head < in.heads;
      const bf16* row = in.q + item.at(in.q_at, from.valid[i] ? head : 0);
      from.rows[i] = reinterpret_cast<const uint8_t*>(row) + first_byte();
    }
    return from;
  }

  // Ids of a tile's rows; -1 past the end.
  __device__ void read_ids(const TileOf& place, int32_t (&ids)[kLaneRows]) const {
    const Item& item = place.item;
    const int end = item.window + item.compressed;
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) {
      const int slot = place.tile * kKeys + first_row + i;
      const int32_t* ids_of =
          slot < item.window ? item.window_ids : item.compressed_ids - item.window;
      ids[i] = slot < end ? ids_of[slot] : -1;
    }
  }

  template <int kWidth>
  __device__ Sources keys(const TileOf& place, const int32_t (&ids)[kLaneRows]) const {
    const int begin = place.tile * kKeys, window = place.item.window;
    Sources from;
    if (begin >= window) {
      for_each_row([&](int i) { find<kWidth>(in.compressed, ids[i], i, from); });
    } else if (begin + kKeys <= window) {
      for_each_row([&](int i) { find<kWidth>(in.window, ids[i], i, from); });
    } else {
      for_each_row([&](int i) {
        find<kWidth>(begin + first_row + i < window ? in.window : in.compressed, ids[i], i, from);
      });
    }
    return from;
  }

  // A bit for each of this warp's 16 rows.
  __device__ uint16_t valid_rows(const Sources& from) const {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) bits |= static_cast<uint32_t>(from.valid[i]) << i;
    return static_cast<uint16_t>(__reduce_or_sync(~0u, bits << (lane / 8 * kLaneRows)));
  }

 private:
  template <class Body>
  __device__ static void for_each_row(const Body& body) {
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) body(i);
  }

  template <int kWidth>
  __device__ void find(const PagedList& rows, int32_t id, int i, Sources& from) const {
    const PoolPointer& pool = rows.list.pool;
    from.valid[i] = 0 <= id && id < pool.num_rows;
    const uint32_t row = from.valid[i] ? id : 0;  // row 0 is there, even if nobody reads it
    const uint32_t page = rows.page_entries.divide(row);
    const uint32_t entry = row - page * rows.page_entries.divisor;
    from.rows[i] = pool.pages + page * pool.page_bytes + entry * kWidth * 2 + first_byte();
  }
};

template <int kPieces>
__device__ void gather_queries(const Gather& gather, const Item& item, uint32_t use,
                               Shared<kPieces>& shared) {
  const Sources from = gather.queries(item);
  shared.q_free.wait((use + 1) % 2);
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) gather.copy(from, piece, shared.q[piece]);
  shared.q_full.arrive_cp_async_noinc();
}

template <int kPieces>
__device__ void gather_tile(const Gather& gather, const Sources& from, uint32_t tile,
                            Shared<kPieces>& shared) {
  const int buffer = static_cast<int>(tile % 2);
  const uint32_t was_free = phase(tile) ^ 1;
  Piece* keys = shared.keys[buffer];
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    if (has_rope(kPieces, part)) {
      shared.rope_free[buffer].wait(was_free);
      gather.copy(from, kValuePieces, keys[kPieces - 1]);
    }
    shared.free[buffer][part].wait(was_free);
    const int piece = first_piece(part, buffer);
    gather.copy(from, piece, keys[piece]);
    gather.copy(from, piece + 1, keys[piece + 1]);
    shared.full[buffer][part].arrive_cp_async_noinc();
  }
  const uint16_t valid = gather.valid_rows(from);
  if (gather.lane == 0) {
    shared.valid[buffer][gather.first_row / 16] = valid;
    shared.full[buffer][kParts - 1].arrive();
  }
}

template <int kPieces>
__device__ void produce(const Inputs& in, Shared<kPieces>& shared) {
  const Gather gather(in);
  int index = static_cast<int>(blockIdx.x);
  TileOf place{Item(in, index), 0};
  int32_t ids[kLaneRows];
  gather.read_ids(place, ids);
  for (uint32_t tile = 0, use = 0;; ++tile) {
    const TileOf now = place;
    const Sources from = gather.keys<kPieces * kPieceWidth>(now, ids);
    if (++place.tile == now.item.tiles()) {
      index += static_cast<int>(gridDim.x);
      if (index < in.items) place = {Item(in, index), 0};
    }
    if (index < in.items) gather.read_ids(place, ids);
    gather_tile(gather, from, tile, shared);
    if (now.tile == 0) gather_queries(gather, now.item, use++, shared);
    if (index >= in.items) return;
  }
}

}  // namespace dsv4::sm90_bf16
