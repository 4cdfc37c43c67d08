// O^T += V^T P^T of a tile, [512 dims, heads]: a warpgroup has 256 dims, of rows in the ring.

#pragma once

#include "dsv4/device/ptx/shared_memory.cuh"
#include "dsv4/device/ptx/smem_desc.cuh"
#include "dsv4/device/ptx/wgmma.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_consumer.cuh"

namespace dsv4::sm90_fp8 {

// Of the warpgroup's dims in a slot.
template <class Row, int kHeads>
__device__ ValueFragments<Row> values_of(const Consumer<Row, kHeads>& c, const Lane& at, int slot) {
  return ValueFragments<Row>(at, ptx::smem_address(c.shared.ring[slot]) + at.wg * kOutTiles * 64);
}
template <class Row, int kHeads>
__device__ const uint4* scales_of(const Consumer<Row, kHeads>& c, const Lane& at, int slot) {
  const __half* scales =
      &c.shared.value_scales[slot][at.wg * kOutTiles * 64 / Row::kGroup][8 * at.j];
  return reinterpret_cast<const uint4*>(scales);
}

template <class Row, int kHeads>
__device__ void shrink_output(Consumer<Row, kHeads>& c, int tile) {
  float factors[kHeads / 4];
  read_heads<kHeads>(c.shared.shrink[tile], factors);
#pragma unroll
  for (int t = 0; t < kOutTiles; ++t) {
    for (int i = 0; i < kHeads / 2; ++i) c.out[t][i] *= factors[i / 4 * 2 + i % 2];
  }
}

// Whether the warpgroup's tile t of dims is RoPE.
template <class Row>
__device__ bool is_rope(const Lane& at, int t) {
  return Row::kRopeIsValue && t == kOutTiles - 1 && at.wg == 1;
}

// What is between the ring and the products: steps of 32 keys and 64 dims. RoPE is twice as long
// and has no scales: its last keys are where those would be.
template <class Row, int kHeads>
struct ValueOperands {
  using C = Consumer<Row, kHeads>;
  static constexpr int kStepsOfGroup = Row::kGroup / 64;  // with the same scales
  static_assert(!Row::kRopeIsValue || kStepsOfGroup == 1);

  Fragments a[C::kDepth];
  Raw raw[C::kAhead + 1];
  uint4 scales_of_group[C::kAhead + 1];

  __device__ uint4& scales(int step) {
    return scales_of_group[step / kStepsOfGroup % (C::kAhead + 1)];
  }
  // values, from: of the step's slot.
  __device__ void load(const Lane& at, const ValueFragments<Row>& values, const uint4* from,
                       int step) {
    const int t = step % kOutTiles;
    Raw& codes = raw[step % (C::kAhead + 1)];
    if (is_rope<Row>(at, t)) {
      values.load_rope(at, codes, scales(step));
    } else {
      values.load(t, codes);
      if (step % kStepsOfGroup == 0) scales(step) = from[t / kStepsOfGroup * (kSlotRows / 8)];
    }
  }
  __device__ const Fragments& decode(const Lane& at, int step) {
    const Raw& codes = raw[step % (C::kAhead + 1)];
    Fragments& operand = a[step % C::kDepth];
    if (is_rope<Row>(at, step % kOutTiles)) {
      ValueFragments<Row>::decode_rope(codes, scales(step), operand);
    } else {
      ValueFragments<Row>::decode(codes, scales(step), operand);
    }
    return operand;
  }
};

// The products with the weights of a tile are done.
template <class Row, int kHeads>
__device__ void finish_values(Consumer<Row, kHeads>& c, int tile) {
  ptx::wgmma_wait_group<0>();
#pragma unroll
  for (int t = 0; t < kOutTiles; ++t) ptx::wgmma_fence_operand(c.out[t]);
  c.shared.weights_empty[tile].arrive();
}

// One tile of the pair: two slots of 32 keys. Tile 1's products follow those of tile 0 that are
// under way.
template <int kPairTile, class Row, int kHeads>
__device__ void multiply_values(Consumer<Row, kHeads>& c) {
  using C = Consumer<Row, kHeads>;
  ValueOperands<Row, kHeads> o;
  const Lane at = this_lane();
  constexpr int kFirst = 2 * kPairTile;
  // Who stored the weights has seen the rows; so has who sees the weights.
  c.shared.weights_full[kPairTile].wait(c.phase(kPairTile));
  if (c.shared.moved[kPairTile] == Move::kLater) shrink_output(c, kPairTile);
  constexpr uint64_t kWeights =
      ptx::make_smem_desc_128B(kSharedBase + (C::S::kTilesOfQuery + kPairTile) * C::S::kTileBytes);
  constexpr int kSteps = 2 * kOutTiles;
  const int slots[2] = {c.slot(kFirst), c.slot(kFirst + 1)};
  const ValueFragments<Row> values[2] = {values_of(c, at, slots[0]), values_of(c, at, slots[1])};
  const uint4* scales[2] = {scales_of(c, at, slots[0]), scales_of(c, at, slots[1])};
  const auto load = [&](int step) {
    o.load(at, values[step / kOutTiles], scales[step / kOutTiles], step);
  };
#pragma unroll
  for (int step = 0; step < C::kAhead; ++step) load(step);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int half = step / kOutTiles, t = step % kOutTiles;
    if (step + C::kAhead < kSteps) load(step + C::kAhead);
    ptx::wgmma_wait_group<C::kDepth - 1>();
    const Fragments& a = o.decode(at, step);
    ptx::wgmma_fence();
    for (int k = 0; k < 2; ++k)
      ptx::Wgmma<__half, kHeads>::run(c.out[t], a[k], kWeights + 4 * half + 2 * k, 1);
    ptx::wgmma_commit_group();
    if (t + 1 < kOutTiles) continue;
    c.shared.empty[slots[half]].arrive();
  }
  finish_values(c, kPairTile);
}

}  // namespace dsv4::sm90_fp8
