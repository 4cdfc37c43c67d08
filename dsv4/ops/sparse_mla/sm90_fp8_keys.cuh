// The dots of a tile of keys, S^T = K Q^T [64 keys, heads]: a warp has 16 keys, from the ring.

#pragma once

#include "dsv4/device/ptx/packed.cuh"
#include "dsv4/device/ptx/shared_memory.cuh"
#include "dsv4/device/ptx/smem_desc.cuh"
#include "dsv4/device/ptx/thread.cuh"
#include "dsv4/device/ptx/wgmma.cuh"
#include "dsv4/ops/sparse_mla/sm90_fp8_consumer.cuh"

namespace dsv4::sm90_fp8 {

// Descriptor of dims 16 step .. of q. A constant: the compiler would otherwise keep all of them.
template <class Row, int kHeads>
__device__ constexpr uint64_t q_tile(int step) {
  return ptx::make_smem_desc_128B(kSharedBase + step / 4 * Shared<Row, kHeads>::kTileBytes +
                                  step % 4 * 32);
}

// Codes of the next steps are on their way from shared memory while those of step i are decoded and
// those before multiplied. RoPE goes first; where it is value too, it has to fit f16.
template <class Row, int kHeads>
__device__ void multiply_keys(Consumer<Row, kHeads>& c, int slot, float (&s)[kHeads / 2],
                              RowState (&rows)[2]) {
  using C = Consumer<Row, kHeads>;
  const Lane at = this_lane();
  const KeyFragments<Row> keys(at, ptx::smem_address(c.shared.ring[slot]), 16 * (at.warp % 2));
  constexpr int kSteps = Row::kCodes / 32, kStepsOfGroup = Row::kGroup / 32;
  const uint8_t* first = c.shared.ring[slot] + (16 * (at.warp % 2) + at.g) * Row::kStride;
  const KeyScales<Row> scales[2] = {{first}, {first + 8 * Row::kStride}};
  Fragments a[C::kDepth];
  Raw raw[C::kAhead + 1];
#pragma unroll
  for (int i = 0; i < C::kAhead; ++i) keys.load(i, raw[i]);
  __nv_bfloat162 largest{};  // magnitude of the RoPE values
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    for (int k = 0; k < 2; ++k) keys.load_rope(2 * i + k, a[i][k]);
    ptx::wgmma_fence();
    for (int k = 0; k < 2; ++k) {
      ptx::Wgmma<__nv_bfloat16, kHeads>::run(s, a[i][k],
                                             q_tile<Row, kHeads>(Row::kCodes / 16 + 2 * i + k), 1);
    }
    ptx::wgmma_commit_group();
    if constexpr (Row::kRopeIsValue) {
      for (const Raw& r : a[i]) {
        for (const uint32_t pair : r) largest = __hmax2(largest, __habs2(ptx::as_bf162(pair)));
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const uint32_t pair[2] = {scales[0].twice(i / kStepsOfGroup),
                              scales[1].twice(i / kStepsOfGroup)};
    if (i + C::kAhead < kSteps) keys.load(i + C::kAhead, raw[(i + C::kAhead) % (C::kAhead + 1)]);
    ptx::wgmma_wait_group<C::kDepth - 1>();
    keys.decode(raw[i % (C::kAhead + 1)], pair, a[(i + 2) % C::kDepth]);
    ptx::wgmma_fence();
    for (int k = 0; k < 2; ++k)
      ptx::Wgmma<__half, kHeads>::run(s, a[(i + 2) % C::kDepth][k], q_tile<Row, kHeads>(2 * i + k),
                                      1);
    ptx::wgmma_commit_group();
  }
  if (Row::kRopeIsValue && !fits_f16(largest)) c.give_up();
  const uint8_t* states = c.shared.rows[slot] + 16 * (this_lane().warp % 2) + ptx::lane_id() / 4;
  for (int r = 0; r < 2; ++r) rows[r] = static_cast<RowState>(states[8 * r]);
  ptx::wgmma_wait_group<0>();
  ptx::wgmma_fence_operand(s);
}

// Dots of keys that do not exist become -inf.
template <class Row, int kHeads>
__device__ void mask(Consumer<Row, kHeads>& c, const RowState (&rows)[2], float (&s)[kHeads / 2]) {
  if (__all_sync(~0u, rows[0] == kKey && rows[1] == kKey)) return;
  const bool low = rows[0] != kNoKey, high = rows[1] != kNoKey;
  if (rows[0] == kKeyTooLarge || rows[1] == kKeyTooLarge) c.give_up();
#pragma unroll
  for (int n = 0; n < kHeads / 8; ++n) {
    if (!low) s[4 * n] = s[4 * n + 1] = -INFINITY;
    if (!high) s[4 * n + 2] = s[4 * n + 3] = -INFINITY;
  }
}

}  // namespace dsv4::sm90_fp8
