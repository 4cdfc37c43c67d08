// A consumer warpgroup: the matrix products and their schedule. The two warpgroups alternate (ping-
// pong): while one computes its softmax, the products of the other keep the tensor cores busy.
//
//   WG0   S 0 | P 0 | PV 0 | S 2 ... PV 1 ... S 2 | P 2 | ...
//   WG1   S 1 .... PV 0 ... S 1 | P 1 | PV 1 | S 3 ....
//
// Three of the four quarters of S come before PV of the previous key tile: with two, P of the other
// warpgroup comes too late for the tensor cores; with four, the buffer becomes free too late for
// the copies (2026-11-21: 3190, 3020 and 3160 clocks per key tile of d 576 for two, three and
// four).
//
// Fragments as in ptx/wgmma.cuh. Both warpgroups lay out P in the same way, so thread i of one
// passes its registers to thread i of the other.

#pragma once

#include "dsv4/device/ptx/fence.cuh"
#include "dsv4/device/ptx/smem_desc.cuh"
#include "dsv4/device/ptx/wgmma.cuh"
#include "dsv4/ops/model/sparse_mla/sm90_bf16/softmax.cuh"

namespace dsv4::sparse_mla_kernel::sm90_bf16 {

// The phase of the barriers of a key tile, which is counted over all work tiles of the CTA.
__device__ inline uint32_t phase_of(uint32_t key_tile) {
  return KvState::of_use(key_tile).phase;
}

template <int kPanels>
struct Consumer {
  Smem<kPanels>& smem;
  int wg, thread, warp, lane;
  uint64_t q_desc, k_desc;           // of panel 0 of q and of this warpgroup's buffer
  uint64_t own_v_desc, peer_v_desc;  // of this warpgroup's dims in its buffer and in the other
  float o[kQuarters / 2][64];        // O: [2 rows, 128 dims] of this warpgroup's two quarters
  Scores s;
  Softmax softmax;

  __device__ Consumer(Smem<kPanels>& memory, float scale)
      : smem(memory),
        // The shuffle shows the compiler that warps agree, or it serializes wgmma in branches.
        wg(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / kWarpgroup, 0)),
        thread(static_cast<int>(threadIdx.x) % kWarpgroup),
        warp(thread / kWarp),
        lane(thread % kWarp),
        q_desc(ptx::make_smem_desc_128B(ptx::smem_address(memory.q))),
        k_desc(ptx::make_smem_desc_128B(ptx::smem_address(memory.kv[wg]))),
        own_v_desc(v_desc(wg)),
        peer_v_desc(v_desc(1 - wg)) {
    softmax.scale = scale * sm90::kLog2E;
  }

  __device__ uint64_t v_desc(int buffer) const {
    const Panel* first = &smem.kv[buffer][wg * (kValuePanels / 2)];
    return ptx::make_smem_desc_128B(ptx::smem_address(first), kPanelBytes);
  }

  // Lane 0 arrives for the warp.
  __device__ void arrive(ptx::Mbarrier& barrier) const {
    __syncwarp();
    if (lane == 0) barrier.arrive();
  }

  // --- S [64 heads, 64 keys] = q [64, d] K^T ---

  __device__ void multiply_panel(int panel, bool accumulate) {
#pragma unroll
    for (int step = 0; step < kPanelDims / 16; ++step) {
      const uint32_t at = panel * kPanelBytes + 32 * step;
      ptx::Wgmma<bf16, kTileKeys>::run(s, ptx::advance_desc(q_desc, at),
                                       ptx::advance_desc(k_desc, at), accumulate || step > 0);
    }
  }

  // Quarters kBegin .. kEnd - 1, each as soon as it is loaded.
  template <int kBegin, int kEnd>
  __device__ void multiply_qk(uint32_t key_tile) {
#pragma unroll
    for (int quarter = kBegin; quarter < kEnd; ++quarter) {
      smem.kv_full[wg][quarter].wait(phase_of(key_tile));
      // cp.async of other threads wrote the panels through the generic proxy.
      ptx::fence_proxy_async();
      ptx::wgmma_fence();
      if (has_rope(kPanels, quarter)) multiply_panel(kValuePanels, false);
      const int panel = first_panel(quarter, wg);
      multiply_panel(panel, has_rope(kPanels, quarter) || quarter > 0);
      multiply_panel(panel + 1, true);
    }
    ptx::wgmma_commit_group();
  }

  // S of this warpgroup's key tile is complete: releases what only QK^T reads, and returns which
  // keys are valid.
  __device__ uint64_t finish_qk(bool last) {
    const uint64_t valid = *reinterpret_cast<const uint64_t*>(smem.valid[wg]);
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_fence_operand(s);
    if (Smem<kPanels>::kRope) arrive(smem.rope_empty[wg]);
    if (last) arrive(smem.q_empty);
    return valid;
  }

  // --- P between the warpgroups ---

  __device__ void publish_p(const Probabilities& p) {
#pragma unroll
    for (int k = 0; k < kTileKeys / 16; ++k) {
      smem.p[k][thread] = {p[k][0], p[k][1], p[k][2], p[k][3]};
    }
    smem.stats[thread] = {softmax.row_max[0], softmax.row_max[1], softmax.row_sum[0],
                          softmax.row_sum[1]};
    smem.p_full[wg][warp].arrive();
  }

  // --- O [64 heads, 256 dims] += P [64, 64 keys] V ---

  // Mostly there is nothing to do: the row max seldom changes.
  __device__ void rescale_output(const float2& rescale) {
    if (!__any_sync(~0u, rescale.x != 1.f || rescale.y != 1.f)) return;
#pragma unroll
    for (int h = 0; h < kQuarters / 2; ++h) {
#pragma unroll
      for (int i = 0; i < 64; ++i) o[h][i] *= i / 2 % 2 == 0 ? rescale.x : rescale.y;
    }
  }

  // One committed group per quarter.
  __device__ void multiply_pv(const Probabilities& p, uint64_t v) {
#pragma unroll
    for (int h = 0; h < kQuarters / 2; ++h) {
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < kTileKeys / 16; ++k) {
        const uint32_t at = 2 * h * kPanelBytes + 16 * k * kPanelRow;
        ptx::Wgmma<bf16, 2 * kPanelDims, 1>::run(o[h], p[k], ptx::advance_desc(v, at), 1);
      }
      ptx::wgmma_commit_group();
    }
  }

  // Quarters of a buffer are free as soon as they are multiplied; kLater groups have been committed
  // since. (One product of 256 dims that frees both at its end is slower.)
  template <int kLater>
  __device__ void finish_pv(int buffer) {
    const int first = buffer == wg ? 0 : kQuarters / 2;  // of this warpgroup's two quarters
    ptx::wgmma_wait_group<kLater + 1>();
    arrive(smem.kv_empty[buffer][first]);
    ptx::wgmma_wait_group<kLater>();
    arrive(smem.kv_empty[buffer][first + 1]);
#pragma unroll
    for (int h = 0; h < kQuarters / 2; ++h) ptx::wgmma_fence_operand(o[h]);
  }

  // Starts PV of a key tile of the other warpgroup, whose proxy fence precedes its arrival at
  // p_full. The products read `p` until finish_pv().
  __device__ void add_peer_tile(uint32_t key_tile, Probabilities& p) {
    smem.p_full[1 - wg][warp].wait(phase_of(key_tile));
    const float4 stats = smem.stats[thread];
    const float now[2] = {stats.x, stats.y};
    rescale_output(softmax.update_max(now));
    softmax.peer_sum[0] = stats.z;
    softmax.peer_sum[1] = stats.w;
#pragma unroll
    for (int k = 0; k < kTileKeys / 16; ++k) {
      const uint4 four = smem.p[k][thread];
      p[k][0] = four.x, p[k][1] = four.y, p[k][2] = four.z, p[k][3] = four.w;
    }
    multiply_pv(p, peer_v_desc);
  }

  // Softmax and PV of this warpgroup's key tile, whose S is complete.
  __device__ void add_own_tile(uint64_t valid) {
    mask(valid, lane, s);
    float now[2];
    softmax.find_max(s, now);
    const float2 rescale = softmax.update_max(now);
    Probabilities p;
    softmax.exponentiate(s, p);
    publish_p(p);
    rescale_output(rescale);
    multiply_pv(p, own_v_desc);
    finish_pv<0>(wg);
  }

  // All key tiles of work tile number `use` of the CTA, an even number; `first` is the first.
  __device__ void attend(uint32_t first, int key_tiles, uint32_t use) {
#pragma unroll
    for (int h = 0; h < kQuarters / 2; ++h) {
#pragma unroll
      for (float& x : o[h]) x = 0.f;
    }
    softmax.reset();
    smem.q_full.wait(use % 2);
    int i = 1;
    if (wg == 0) {
      multiply_qk<0, kQuarters>(first);
      add_own_tile(finish_qk(key_tiles == 2));
      i = 2;
    }
    for (; i < key_tiles; i += 2) {
      const uint32_t key_tile = first + i;
      multiply_qk<0, 3>(key_tile);
      Probabilities p;
      add_peer_tile(key_tile - 1, p);
      multiply_qk<3, kQuarters>(key_tile);
      finish_pv<1>(1 - wg);
      add_own_tile(finish_qk(i + 2 >= key_tiles));
    }
    if (wg == 0) {
      Probabilities p;
      add_peer_tile(first + key_tiles - 1, p);
      finish_pv<0>(1 - wg);
    }
  }
};

}  // namespace dsv4::sparse_mla_kernel::sm90_bf16
