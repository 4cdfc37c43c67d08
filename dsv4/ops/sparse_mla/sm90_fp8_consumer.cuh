// A computing thread: its registers, where it is in the ring and among items, and barriers that it
// waits for. What it does between them: sm90_fp8_keys.cuh, sm90_fp8_softmax.cuh,
// sm90_fp8_values.cuh.

#pragma once

#include "dsv4/ops/sparse_mla/sm90_fp8_fragments.cuh"

namespace dsv4::sm90_fp8 {

// Where a consumer is, in one register: bits that a barrier's phase follows, one for each tile of a
// pair, the ring and items; whether a key of the item has set the reference; and from kTileLeft on
// how many tiles the item still has.
enum State : uint32_t {
  kTurnOfTile = 1,
  kTurnOfRing = 4,
  kTurnOfItem = 8,
  kReferenced = 16,
  kTileLeft = 32
};

template <class Row, int kHeads>
struct Consumer {
  using S = Shared<Row, kHeads>;
  // Steps whose operands are in registers, decoded or multiplied, and those that are on their way
  // there from shared memory. With 64 heads one more of either is a spill.
  static constexpr bool kTight = kHeads == 64 && Row::kRopeIsValue;
  static constexpr int kDepth = kTight ? 2 : 3, kAhead = kHeads < 64 || kTight ? 2 : 1;

  const Params& p;
  S& shared;
  float out[kOutTiles][kHeads / 2];  // O^T; dims 256 wg + 64 t + 16 warp + ..
  float sums[2];                     // of the warp's weights; heads as of for_each_head
  uint32_t state = 0;                // State
  int first_slot = 0;                // of the pair

  __device__ Consumer(const Params& params, S& memory) : p(params), shared(memory) {}

  __device__ void begin() {
#pragma unroll
    for (int t = 0; t < kOutTiles; ++t) {
      for (int i = 0; i < kHeads / 2; ++i) out[t][i] = 0.f;
    }
    for (float& sum : sums) sum = 0.f;
    state = state % kReferenced + static_cast<uint32_t>(item().work.tiles()) * kTileLeft;
  }

  __device__ int turn(uint32_t flag) const {
    return (state & flag) != 0 ? 1 : 0;
  }
  // Of the barriers of tile 0 or 1 of the pair.
  __device__ int phase(int tile) const {
    return turn(kTurnOfTile << tile);
  }
  __device__ int tiles_left() const {
    return static_cast<int>(state / kTileLeft);
  }
  // Of this iteration, and whether it is the item's last.
  __device__ int tiles() const {
    return min(tiles_left(), 2);
  }
  __device__ bool is_last() const {
    return tiles_left() <= 2;
  }
  __device__ Item<kHeads>& item() const {
    return shared.items[turn(kTurnOfItem)];
  }

  // Slot i of the pair, from 0 to 3, in the ring.
  __device__ int slot(int i) const {
    const int slot = first_slot + i;
    return slot < S::kSlots ? slot : slot - S::kSlots;
  }
  __device__ void wait_full(int i) {
    const bool wraps = first_slot + i >= S::kSlots;
    shared.full[slot(i)].wait(turn(kTurnOfRing) ^ (wraps ? 1 : 0));
  }

  // This thread is done with q of the item.
  __device__ void release_queries() const {
    shared.item_empty.arrive();
  }
  // Everybody's sums and give_up()s of the item are there.
  __device__ void wait_for_sums() const {
    shared.sums_full.wait(turn(kTurnOfItem));
  }
  // Both warpgroups have used what this one is about to overwrite.
  __device__ void wait_for_room() {
    const Lane at = this_lane();
    shared.weights_empty[at.wg].wait(phase(at.wg) ^ 1);
  }

  // Something of this item does not fit f16.
  __device__ void give_up() const {
    item().too_large = item().work.item + 1;
  }
};

// m[i]: of head 8 (i / 2) + 2j + i % 2. values: in the order of reference_place().
template <int kHeads>
__device__ void read_heads(const float* values, float (&m)[kHeads / 4]) {
  const Lane at = this_lane();
  const float* from = values + kHeads / 4 * at.j;
  if constexpr (kHeads == 8) {
    m[0] = from[0], m[1] = from[1];
  } else {
#pragma unroll
    for (int i = 0; i < kHeads / 4; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + i);
      m[i] = four.x, m[i + 1] = four.y, m[i + 2] = four.z, m[i + 3] = four.w;
    }
  }
}

}  // namespace dsv4::sm90_fp8
