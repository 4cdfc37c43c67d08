// Sparse MLA over bf16 KV entries (prefill) on Hopper's tensor cores.
//
// Problem    one query token and 64 heads per work tile, against its window and compressed indices;
//            d 512 or 576, d_v 512, any number of heads (fewer than 64 cost as much as 64):
//              S = scale q K^T,  P = exp(S - m),  out = P V / (sum P + exp(sink - m))
//            P is bf16, relative to the running max. Keys are never split among CTAs, so a query's
//            bits depend on its lists only.
// Bound      wgmma: 64 x 64 x (d + 512) products per key tile; the gather runs at L2 rate
// Tiles      64 heads x 64 keys. A key tile is cut along d into panels of 64 dims (8 KiB), two
//            buffers of 8 or 9 panels, loaded and freed in quarters of two value panels.
//            O [64, 512] in registers, 256 dims per consumer warpgroup.
// Roles      WG0, WG1  consumers: WG i % 2 computes S and P of key tile i and publishes P; both add
//                      P V for their dims
//            WG2       producer: q, KV entries, valid bits; runs one work tile ahead
// Barriers   name                      count         arrived by           waited by
//            q_full                    128 (noinc)   producer cp.async    WG0, WG1
//            q_empty                   8 warps       WG0, WG1 after QK^T  producer
//            kv_full[buffer][quarter]  128 (noinc)   producer cp.async    the owner WG
//                                      last: + 4     producer, valid bits
//            kv_empty[..][quarter]     4 warps       WG of the dims, PV   producer
//            rope_empty[buffer]        4 warps       the owner WG, QK^T   producer
//            p_full[wg][warp]          32            warp of the owner    same warp, other WG
// Registers  168 at launch; then consumers 216, producer 72
// Measured   H100 80GB HBM3, 2026-11-22 (bench/results/gpu-h100/ops_sparse_mla.json): prefill,
//            4096 queries, 128 heads, d 576, 2048 indices: 3.47 ms, 673 TFLOP/s, 85 % of the matrix
//            peak

#pragma once

#include "dsv4/device/ptx/setmaxnreg.cuh"
#include "dsv4/ops/model/sparse_mla/sm90_bf16/epilogue.cuh"
#include "dsv4/ops/model/sparse_mla/sm90_bf16/producer.cuh"

namespace dsv4::sparse_mla_kernel::sm90_bf16 {

template <int kPanels, class Out>
__device__ void consume(const Params& p, Smem<kPanels>& smem) {
  Consumer<kPanels> consumer(smem, p.scale);
  uint32_t key_tile = 0, use = 0;
  for (int index = static_cast<int>(blockIdx.x); index < p.tiles;
       index += static_cast<int>(gridDim.x), ++use) {
    const WorkTile work(p, index);
    const int key_tiles = work.key_tiles();
    consumer.attend(key_tile, key_tiles, use);
    finish_tile<Out>(consumer, p, work);
    key_tile += key_tiles;
  }
}

// Persistent: CTAs walk over work tiles blockIdx.x, + gridDim.x, ...
template <int kPanels, class Out>
__global__ void __launch_bounds__(kThreads, 1)
    sparse_mla_bf16_kernel(const __grid_constant__ Params p) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  auto& smem = *reinterpret_cast<Smem<kPanels>*>(ptx::dynamic_smem());
  if (threadIdx.x == 0) smem.init();
  __syncthreads();
  if (threadIdx.x >= 2 * kWarpgroup) {
    ptx::setmaxnreg_dec<kProducerRegisters>();
    produce(p, smem);
  } else {
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    consume<kPanels, Out>(p, smem);
  }
#else
  __trap();  // compiled for another architecture, which the implementation rejects
#endif
}

template <int kPanels>
Instance instance(bool out_f32) {
  return {.kernel = out_f32 ? sparse_mla_bf16_kernel<kPanels, float>
                            : sparse_mla_bf16_kernel<kPanels, bf16>,
          .smem_bytes = sizeof(Smem<kPanels>)};
}

}  // namespace dsv4::sparse_mla_kernel::sm90_bf16
