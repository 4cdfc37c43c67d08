// A consumer warpgroup: S = Q K^T, online softmax, O += P V, for 64 queries of every work tile.
//
// Fragments as in ptx/wgmma.cuh: a thread has rows g and g + 8 of its warp's 16 (r = 0, 1). All
// exponentials are of base 2; `largest` is in units of S, before the scale.

#pragma once

#include "dsv4/device/ptx/convert.cuh"
#include "dsv4/device/ptx/fence.cuh"
#include "dsv4/device/ptx/named_barrier.cuh"
#include "dsv4/device/ptx/packed.cuh"
#include "dsv4/device/ptx/smem_desc.cuh"
#include "dsv4/device/ptx/wgmma.cuh"
#include "dsv4/device/sm90/limits.h"
#include "dsv4/ops/xattn/attention/sm90/config.cuh"

namespace dsv4::block_sparse_attention_kernel::sm90 {

__device__ inline uint32_t pack(float low, float high, bf16) {
  return ptx::pack_bf16x2(low, high);
}
__device__ inline uint32_t pack(float low, float high, f16) {
  return ptx::pack_f16x2(low, high);
}

template <class C>
class Consumer {
 public:
  using T = typename C::T;
  static constexpr int kSteps = C::kKeys / 16;  // of PV along the keys

  __device__ Consumer(const Params& params, Shared<C>& shared)
      : params_(params),
        shared_(shared),
        // The shuffle shows the compiler that all threads of a warp agree.
        group_(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / kGroup - 1, 0)),
        warp_(static_cast<int>(threadIdx.x) % kGroup / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        q_desc_(ptx::make_smem_desc_128B(ptx::smem_address(shared.q) + group_ * 64 * kPanelRow)),
        k_desc_(ptx::make_smem_desc_128B(ptx::smem_address(shared.k))),
        v_desc_(ptx::make_smem_desc_128B(ptx::smem_address(shared.v), C::kKeys * kPanelRow)),
        scale_(params.scale * dsv4::sm90::kLog2E) {}

  __device__ void run() {
    // The first turn is warpgroup 0's.
    if (group_ == 1) ptx::barrier_arrive(kTurn0, kConsumers * kGroup);
    int tile = 0, loads_of_q = 0;
    for (int use = 0;; ++use) {
      const int slot = stage<kWorkSlots>(use);
      shared_.work_full[slot].wait(phase<kWorkSlots>(use));
      const WorkTile work = shared_.work[slot];
      arrive(shared_.work_free[slot]);
      if (work.num_tiles < 0) return;
      start();
      if (work.num_tiles > 0) attend(work, tile, loads_of_q++);
      tile += work.num_tiles;
      store(work);
    }
  }

 private:
  __device__ void start() {
#pragma unroll
    for (float& o : out_) o = 0.f;
    for (int r = 0; r < 2; ++r) largest_[r] = -INFINITY, sum_[r] = 0.f;
  }

  // One lane arrives for what its warp has done.
  __device__ void arrive(ptx::Mbarrier& barrier) const {
    __syncwarp();
    if (lane_ == 0) barrier.arrive();
  }

  __device__ void wait_for_keys(int tile) {
    shared_.k_full[stage<C::kStages>(tile)].wait(phase<C::kStages>(tile));
  }
  __device__ void wait_for_values(int tile) {
    shared_.v_full[stage<C::kStages>(tile)].wait(phase<C::kStages>(tile));
  }

  // All tiles of a work tile: tiles from number `first` on, load number q_use of Q.
  __device__ void attend(const WorkTile& work, int first, int q_use) {
    const int end = first + work.num_tiles, q = stage<C::kQStages>(q_use);
    shared_.q_full[q].wait(phase<C::kQStages>(q_use));
    wait_for_keys(first);
    multiply_keys(first, q);
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_fence_operand(s_);
    arrive(shared_.k_free[stage<C::kStages>(first)]);
    if (work.num_tiles == 1) arrive(shared_.q_free[q]);
    if (work.masked_tiles > 0) mask(work, work.last_tile);
    if (work.last_tile + C::kKeys > work.keys) clear_values(first, work.keys - work.last_tile);
    softmax<true>();
    round_p();
    for (int tile = first + 1; tile < end; ++tile) {
      wait_for_keys(tile);
      ptx::barrier_sync(kTurn0 + group_, kConsumers * kGroup);
      multiply_keys(tile, q);
      wait_for_values(tile - 1);
      multiply_values(tile - 1);
      ptx::barrier_arrive(kTurn1 - group_, kConsumers * kGroup);
      ptx::wgmma_wait_group<1>();
      ptx::wgmma_fence_operand(s_);
      arrive(shared_.k_free[stage<C::kStages>(tile)]);
      if (tile + 1 == end) arrive(shared_.q_free[q]);
      if constexpr (C::kTilesPerBlock > 1) {
        const int i = tile - first;
        if (i < work.masked_tiles) mask(work, work.last_tile - i * C::kKeys);
      }
      const float2 rescale = softmax<(C::kTilesPerBlock > 1)>();
      ptx::wgmma_fence_operand(s_);  // keeps the exponentials before the wait
      ptx::wgmma_wait_group<0>();
      ptx::wgmma_fence_operand(out_);
      arrive(shared_.v_free[stage<C::kStages>(tile - 1)]);
      round_p();
      rescale_out(rescale);
    }
    wait_for_values(end - 1);
    multiply_values(end - 1);
    ptx::wgmma_wait_group<0>();
    ptx::wgmma_fence_operand(out_);
    arrive(shared_.v_free[stage<C::kStages>(end - 1)]);
  }

  // S = Q K^T of 64 queries; one committed group.
  __device__ void multiply_keys(int tile, int q_stage) {
    const uint64_t q = ptx::advance_desc(q_desc_, q_stage * C::kQBytes);
    const uint64_t k = ptx::advance_desc(k_desc_, stage<C::kStages>(tile) * C::kKBytes);
    ptx::wgmma_fence();
#pragma unroll
    for (int c = 0; c < C::kD / 16; ++c) {
      const int panel = c * 16 / kPanel, in_panel = c * 32 % kPanelRow;
      ptx::Wgmma<T, C::kKeys>::run(s_, ptx::advance_desc(q, panel * kBlock * kPanelRow + in_panel),
                                   ptx::advance_desc(k, panel * C::kKeys * kPanelRow + in_panel),
                                   c > 0);
    }
    ptx::wgmma_commit_group();
  }

  // O += P V; one committed group.
  __device__ void multiply_values(int tile) {
    const uint64_t v = ptx::advance_desc(v_desc_, stage<C::kStages>(tile) * C::kVBytes);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      ptx::Wgmma<T, C::kDv, 1>::run(out_, p_[step], ptx::advance_desc(v, step * 16 * kPanelRow), 1);
    }
    ptx::wgmma_commit_group();
  }

  // Position of row r of this thread.
  __device__ int position(const WorkTile& work, int r) const {
    return work.first + group_ * 64 + warp_ * 16 + r * 8 + lane_ / 4;
  }

  // Keys that the queries do not see, in the tile whose first key is `first`.
  __device__ void mask(const WorkTile& work, int first) {
    int limit[2];  // columns below it count
    for (int r = 0; r < 2; ++r) {
      limit[r] = work.keys - first - 2 * (lane_ % 4);
      if (params_.causal) {
        limit[r] = min(limit[r], position(work, r) + 1 - first - 2 * (lane_ % 4));
      }
    }
#pragma unroll
    for (int i = 0; i < C::kKeys / 2; ++i) {
      if (8 * (i / 4) + i % 2 >= limit[i / 2 % 2]) s_[i] = -INFINITY;
    }
  }

  // Rows of V from `keys` on are no values of this sequence; P is zero there, but V may be NaN.
  __device__ void clear_values(int tile, int keys) {
    wait_for_values(tile);
    const uint32_t v = ptx::smem_address(shared_.v[stage<C::kStages>(tile)]);
    const int rows = C::kKeys - keys;
    const int thread = static_cast<int>(threadIdx.x) - kGroup;  // of both consumers
    for (int i = thread; i < rows * 8 * (C::kDv / kPanel); i += kConsumers * kGroup) {
      const int panel = i / (rows * 8), at = i % (rows * 8);
      ptx::st_shared_v4_zero(v + (panel * C::kKeys + keys) * kPanelRow + at * 16);
    }
    ptx::fence_proxy_async();
    ptx::barrier_sync(kValuesCleared, kConsumers * kGroup);
  }

  // S to exponentials relative to the new maximum; returns the factors for what was added before.
  // kGuard: a row may have no key so far.
  template <bool kGuard>
  __device__ float2 softmax() {
    float rescale[2], base[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float now = largest_[r];
#pragma unroll
      for (int n = 0; n < C::kKeys / 8; ++n) {
        now = fmaxf(now, fmaxf(s_[4 * n + 2 * r], s_[4 * n + 2 * r + 1]));
      }
      now = fmaxf(now, __shfl_xor_sync(~0u, now, 1));
      now = fmaxf(now, __shfl_xor_sync(~0u, now, 2));
      base[r] = (kGuard && now == -INFINITY ? 0.f : now) * scale_;
      rescale[r] = ptx::ex2_approx_ftz(fmaf(largest_[r], scale_, -base[r]));
      largest_[r] = now;
    }
    float even[2] = {0.f, 0.f}, odd[2] = {0.f, 0.f};
#pragma unroll
    for (int n = 0; n < C::kKeys / 8; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float& a = s_[4 * n + 2 * r];
        float& b = s_[4 * n + 2 * r + 1];
        a = ptx::ex2_approx_ftz(fmaf(a, scale_, -base[r]));
        b = ptx::ex2_approx_ftz(fmaf(b, scale_, -base[r]));
        even[r] += a;
        odd[r] += b;
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) sum_[r] = fmaf(sum_[r], rescale[r], even[r] + odd[r]);
    return {rescale[0], rescale[1]};
  }

  // The fragments of S are those of the left operand of PV.
  __device__ void round_p() {
#pragma unroll
    for (int n = 0; n < C::kKeys / 8; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        p_[n / 2][n % 2 * 2 + r] = pack(s_[4 * n + 2 * r], s_[4 * n + 2 * r + 1], T{});
      }
    }
  }

  __device__ void rescale_out(const float2& rescale) {
#pragma unroll
    for (int i = 0; i < C::kDv / 2; ++i) out_[i] *= i / 2 % 2 == 0 ? rescale.x : rescale.y;
  }

  // O / sum to `out`, ln of the sum to `lse`.
  __device__ void store(const WorkTile& work) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float sum = sum_[r];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const int at = position(work, r);
      const bool exists = work.begin <= at && at < work.end;
      const int64_t row = at + work.row_shift;
      if (exists && params_.lse != nullptr && lane_ % 4 == 0) {
        params_.lse[work.head * params_.lse_head + row] =
            sum > 0.f ? fmaf(largest_[r], params_.scale, logf(sum)) : -INFINITY;
      }
      T* to = static_cast<T*>(params_.out) + row * params_.out_row + work.head * params_.out_head;
      store_row(r, sum > 0.f ? 1.f / sum : 0.f, exists ? to : nullptr);
    }
  }

  // Neighbors exchange a pair, so that each has four columns of 8 n or of 8 (n + 1), and four lanes
  // write a sector of 32 bytes.
  __device__ void store_row(int r, float factor, T* to) const {
    const bool odd = lane_ % 2 != 0;
    const int column = 8 * (lane_ % 2) + 4 * (lane_ % 4 / 2);
#pragma unroll
    for (int n = 0; n < C::kDv / 8; n += 2) {
      const float* a = out_ + 4 * n + 2 * r;
      const float* b = a + 4;
      const uint32_t low = pack(a[0] * factor, a[1] * factor, T{});
      const uint32_t high = pack(b[0] * factor, b[1] * factor, T{});
      const uint32_t got = __shfl_xor_sync(~0u, odd ? low : high, 1);
      if (to == nullptr) continue;
      *reinterpret_cast<uint2*>(to + 8 * n + column) = odd ? uint2{got, high} : uint2{low, got};
    }
  }

  const Params& params_;
  Shared<C>& shared_;
  const int group_, warp_, lane_;
  const uint64_t q_desc_, k_desc_, v_desc_;  // of this group's rows; stage 0
  const float scale_;                        // of S, to powers of 2
  float out_[C::kDv / 2];                    // O: 64 queries of d_v
  float s_[C::kKeys / 2];                    // S, then exponentials
  uint32_t p_[kSteps][4];                    // P, rounded
  float largest_[2], sum_[2];                // so far; sum_ of this thread's columns
};

}  // namespace dsv4::block_sparse_attention_kernel::sm90
