// Sparse MLA over packed FP8 KV entries (V4 and V3.2) on Hopper: decode and prefill.
//
// Problem    one query token (request, position) against its window and compressed indices, as MQA:
//            8, 16, 32 or 64 heads per CTA; several queries per CTA, or one query per cluster of
//            2 .. 8 CTAs that split its keys (plan.h).
//              S = q K^T,  P = exp(scale S - m),  out = P V / (sum P + exp(sink - m))
//            K and V are f16 in registers: exact for scales that are powers of two from 2^-15 to
//            2^7. Other scales (V3.2) are rounded, 2^-11 relative; smaller ones cost an absolute
//            error below 2^-16. P is f16. fallback_f32.cuh computes work tiles that exceed f16.
// Bound      wgmma and the e4m3 -> f16 conversion with 64 heads; HBM with few heads; latency of the
//            start and of the last key tile with few queries (docs/kernels/sparse_mla.md)
// Tiles      both products transposed, so that a KV entry is the A operand and is decoded only in
//            registers. One iteration: a pair of key tiles of 64 keys. c = scale log2(e), m in log2
//              S^T = K Q^T          [64 keys, heads]    key tile w by consumer warpgroup w
//              P^T = 2^(c S^T - m)  f16, in shared memory
//              O^T += V^T P^T       [512 dims, heads]   dims 256 w .. 256 w + 255 by warpgroup w
//            KV pipeline: 6 to 10 stages of 32 entries, as stored in the cache
// Roles      WG0, WG1  consumers: QK^T, softmax, PV, epilogue; they prepare the CTA's first tile
//            WG2       producer: indices, KV entries, later tiles, split scales
// Barriers   name             count       arrived by                    waited by
//            kv_full[stage]   32 + bytes  producer lanes, bulk copies   WG of the key tile (QK^T)
//            kv_empty[stage]  256         WG0, WG1 after PV             producer
//            p_full[t]        128         WG t after storing P          WG0, WG1 (PV)
//            p_empty[t]       256         WG0, WG1 after PV             WG t (softmax)
//            max_ready[t]     128         WG t                          the other WG
//            tile_full        128         producer                      WG0, WG1 (later tiles)
//            q_empty          256         WG0, WG1 after last QK^T      producer
//            row_sum_full     256         WG0, WG1                      WG0, WG1, producer
//            partials_empty   cluster     producer of every CTA         WG0, WG1 (combine)
//            stats_full       1 + bytes   producer, st_async            producer
//            scales_ready     128         producer                      WG0, WG1 (combine)
//            partials_full    1 + bytes   WG0 thread 0, st_async        WG0, WG1 (combine)
//            Every thread arrives, not one per warp: as fast, and racecheck can follow it.
//            Named: kBarrierConsumers 256, kBarrierWarpgroup + w 128, kBarrierProducer 128,
//            kBarrierIndices 384.
// Registers  168 at launch; then consumers 224 and producer 56 (64 heads of V4), or 216 and 72
// Measured   H100 80GB HBM3, 2026-11-22 (bench/results/gpu-h100/ops_sparse_mla.json); V4, 64 heads,
//            128 + 512 indices: batch 1 7.0 us, batch 32 15.4 us, 4096 queries 795 us (432 TFLOP/s,
//            88 % of copy bandwidth)

#pragma once

#include "dsv4/device/ptx/griddep.cuh"
#include "dsv4/device/ptx/setmaxnreg.cuh"
#include "dsv4/ops/model/sparse_mla/sm90_fp8/epilogue.cuh"
#include "dsv4/ops/model/sparse_mla/sm90_fp8/load_q.cuh"
#include "dsv4/ops/model/sparse_mla/sm90_fp8/producer.cuh"
#include "dsv4/ops/model/sparse_mla/sm90_fp8/softmax.cuh"

namespace dsv4::sparse_mla_kernel::sm90_fp8 {

template <class KvFormat, int kHeads>
constexpr int kProducerRegisters = Consumer<KvFormat, kHeads>::kTight ? 56 : 72;
template <class KvFormat, int kHeads>
constexpr int kConsumerRegisters = sm90::consumer_registers(kProducerRegisters<KvFormat, kHeads>);

// One iteration: the next pair of key tiles, or the last single one.
template <bool kTrackMax, class KvFormat, int kHeads>
__device__ void iterate(Consumer<KvFormat, kHeads>& c) {
  const Lane at = this_lane();
  float s[kHeads / 2] = {};
  const bool has_tile = at.wg < c.key_tiles();
  if (has_tile) {
    c.wait_kv_full(2 * at.wg), c.wait_kv_full(2 * at.wg + 1);
    KeyState key_state[2];  // of this lane's keys
    multiply_qk(c, c.stage(2 * at.wg + at.warp / 2), s, key_state);
    mask(c, key_state, s);
  }
  if (c.is_last()) c.release_q();
  // Below 64 heads both warpgroups set the first row max jointly: WG1 need not wait for softmax of
  // WG0. With 64, one of them may still store the previous query; the other would wait for its S.
  const bool jointly = kHeads < 64 && c.key_tiles() > 1 && !c.bit(kHasMax);
  if (at.wg == 1 && !jointly) apply_peer_update(c, 0);
  if (has_tile) {
    jointly ? set_first_max_jointly(c, s) : subtract_row_max<kTrackMax>(c, s);
    store_p(c, s);
  }
  // Key tile 1 may still rescale the row sums of key tile 0.
  const bool follows = at.wg == 0 && c.key_tiles() > 1 && !jointly;
  if (c.is_last() && !follows) publish_row_sum(c);
  multiply_pv<0>(c);
  if (c.key_tiles() > 1) {
    if (follows) apply_peer_update(c, 1);
    if (c.is_last() && follows) publish_row_sum(c);
    multiply_pv<1>(c);
  }
  c.advance();
}

template <bool kTrackMax, class KvFormat, int kHeads>
__device__ void consume(const Params& p, Smem<KvFormat, kHeads>& smem, const WorkTile& first) {
  Consumer<KvFormat, kHeads> c(p, smem);
  const QLoader<KvFormat, kHeads, kConsumers> q{p, smem, thread_index()};
  if (p.early) {
    set_rotation(c, first);
    ptx::griddepcontrol_wait();
  }
  ptx::barrier_sync(kBarrierIndices, kThreads);
  q.fetch(first);
  if (!p.early) set_rotation(c, first);
  q.finish(first, 0);
  if (p.cluster_size > 1) ptx::cluster_wait();  // the other CTAs started while q was in flight
  ptx::barrier_sync(kBarrierConsumers, kConsumers);
  for (;;) {
    c.begin_tile();
    if (c.key_tiles_left() == 0) {
      c.release_q();
      publish_row_sum(c);
    }
    while (c.key_tiles_left() > 0) iterate<kTrackMax>(c);
    finish_tile(c);
    const int phase = c.bit(kPhaseOfTile);
    if (next_tile(p, c.tile().work.index) >= num_tiles(p)) return;
    c.state ^= kPhaseOfTile;
    smem.tile_full.wait(phase);
    set_rotation(c, c.tile().work);
  }
}

template <class KvFormat, int kHeads>
__device__ void init_barriers(const Params& p, Smem<KvFormat, kHeads>& smem) {
  for (auto& barrier : smem.kv_full) barrier.init(kStageKeys);
  for (auto& barrier : smem.kv_empty) barrier.init(kConsumers);
  for (auto& barrier : smem.p_full) barrier.init(kWarpgroup);
  for (auto& barrier : smem.p_empty) barrier.init(kConsumers);
  for (auto& barrier : smem.max_ready) barrier.init(kWarpgroup);
  smem.tile_full.init(kWarpgroup);
  smem.q_empty.init(kConsumers);
  smem.row_sum_full.init(kConsumers);
  smem.partials_empty.init(static_cast<uint32_t>(p.cluster_size));
  smem.stats_full.init(1);
  smem.scales_ready.init(kWarpgroup);
  smem.partials_full.init(1);
  for (auto& tile : smem.tiles) tile.overflow = 0;
  ptx::fence_mbarrier_init();
}

template <class KvFormat, int kHeads, bool kTrackMax>
__global__ void __launch_bounds__(kThreads, 1)
    sparse_mla_fp8_kernel(const __grid_constant__ Params p) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  auto& smem = *reinterpret_cast<Smem<KvFormat, kHeads>*>(ptx::dynamic_smem());
  if (threadIdx.x == 0) {
    // Matrix descriptors are made from the constant.
    if (ptx::smem_offset(ptx::smem_address(&smem)) != kSmemBase) __trap();
    init_barriers(p, smem);
  }
  __syncthreads();
  if (p.cluster_size > 1) ptx::cluster_arrive_relaxed();  // others may access this CTA's barriers
  ptx::griddepcontrol_launch_dependents();
  WorkTile first = locate_tile<kHeads>(p, first_tile(p));  // the previous kernel may still run
  first.request = ptx::opaque(first.request), first.query = ptx::opaque(first.query);
  if (!p.early) ptx::griddepcontrol_wait();  // else each role waits
  read_lengths(p, first);
  if (static_cast<int>(threadIdx.x) >= kConsumers) {
    ptx::setmaxnreg_dec<kProducerRegisters<KvFormat, kHeads>>();
    Producer<KvFormat, kHeads>(p, smem).run(first);
  } else {
    ptx::setmaxnreg_inc<kConsumerRegisters<KvFormat, kHeads>>();
    consume<kTrackMax>(p, smem, first);
  }
#else
  __trap();  // compiled for another architecture, which the implementation rejects
#endif
}

template <class KvFormat, int kHeads>
Instance instance(bool track_max) {
  static_assert(sizeof(Smem<KvFormat, kHeads>) <= kMaxSmem);
  return {.kernel = track_max ? sparse_mla_fp8_kernel<KvFormat, kHeads, true>
                              : sparse_mla_fp8_kernel<KvFormat, kHeads, false>,
          .smem_bytes = sizeof(Smem<KvFormat, kHeads>)};
}

}  // namespace dsv4::sparse_mla_kernel::sm90_fp8
