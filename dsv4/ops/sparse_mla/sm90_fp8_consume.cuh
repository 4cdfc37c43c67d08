// The computing warpgroups. Tiles of 64 keys come in pairs (the last may be alone):
//
//   warpgroup w:  S^T = K Q^T of tile w         [64 keys, heads]      A = keys, from the ring
//                 P^T = 2^(c S^T - m)           f16, to shared memory
//                 O^T += V^T P^T of both tiles  [256 dims, heads]     A = values, from the ring

#pragma once

#include "dsv4/ops/sparse_mla/sm90_fp8_keys.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_softmax.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_values.cuh"

namespace dsv4::sm90_fp8 {

// An item without tiles.
template <class Row, int kHeads>
__device__ void skip(const Consumer<Row, kHeads>& c) {
  c.release_queries();
  publish_sums(c);
}

// The next pair of tiles, or the last tile.
template <bool kTrackMaximum, class Row, int kHeads>
__device__ void iterate(Consumer<Row, kHeads>& c) {
  using C = Consumer<Row, kHeads>;
  const Lane at = this_lane();
  float s[kHeads / 2] = {};
  const bool has_tile = at.wg < c.tiles();
  if (has_tile) {
    c.wait_full(2 * at.wg), c.wait_full(2 * at.wg + 1);
    RowState rows[2];  // of this lane's keys
    multiply_keys(c, c.slot(2 * at.wg + at.warp / 2), s, rows);
    mask(c, rows, s);
  }
  if (c.is_last()) c.release_queries();
  // Few heads find the first reference together, a softmax sooner. With many, one warpgroup stores
  // the query before for so long that the other would wait for its dots.
  const bool together = kHeads < 64 && c.tiles() > 1 && !c.turn(kReferenced);
  if (at.wg == 1 && !together) follow(c, 0);
  if (has_tile) {
    together ? find_reference(c, s) : subtract_reference<kTrackMaximum>(c, s);
    weigh(c, s);
  }
  // Tile 1 may still shrink the sums of tile 0.
  const bool follows = at.wg == 0 && c.tiles() > 1 && !together;
  if (c.is_last() && !follows) publish_sums(c);
  multiply_values<0>(c);
  if (c.tiles() > 1) {
    if (follows) follow(c, 1);
    if (c.is_last() && follows) publish_sums(c);
    multiply_values<1>(c);
  }
  const int tiles = c.tiles();
  c.first_slot += 2 * tiles;
  if (c.first_slot >= C::S::kSlots) c.first_slot -= C::S::kSlots, c.state ^= kTurnOfRing;
  c.state ^= tiles > 1 ? 3 * kTurnOfTile : kTurnOfTile;
  c.state -= static_cast<uint32_t>(tiles) * kTileLeft;
}

}  // namespace dsv4::sm90_fp8
