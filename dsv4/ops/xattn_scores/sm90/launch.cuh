// The Hopper kernel (config.cuh): roles by warpgroup, and its launch.

#pragma once

#include <algorithm>

#include "dsv4/device/launch.cuh"
#include "dsv4/device/ptx/setmaxnreg.cuh"
#include "dsv4/device/tma_map.h"
#include "dsv4/ops/xattn_scores/sm90/consumer.cuh"
#include "dsv4/ops/xattn_scores/sm90/plan.h"
#include "dsv4/ops/xattn_scores/sm90/producer.cuh"

namespace dsv4::xattn_scores_kernel::sm90 {

static_assert(kRows == kTileRows && kColumns == kTileColumns);

template <class C>
__global__ void __launch_bounds__(kThreads, 1) score_kernel(const __grid_constant__ Params params) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  auto& shared = *reinterpret_cast<Shared*>(ptx::dynamic_smem());
  if (threadIdx.x == 0) shared.init(params.ctas);
  __syncthreads();
  const int cta = static_cast<int>(blockIdx.x), rank = cta % params.ctas;
  const int cluster = cta / params.ctas, clusters = static_cast<int>(gridDim.x) / params.ctas;
  ptx::cluster_arrive_relaxed();
  ptx::cluster_wait();
  if (threadIdx.x < kGroup) {
    ptx::setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x == 0) Producer<C>(params, shared, rank).run(cluster, clusters);
  } else {
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    Consumer<C>(params, shared, cta).run(cluster, clusters, rank);
  }
  __syncwarp();  // other CTAs arrive at this one's barriers to the end
  ptx::cluster_arrive_relaxed();
  ptx::cluster_wait();
#else
  __trap();  // compiled for another architecture; reject() refuses those
#endif
}

// [t, h, d], or pages of it; heads are adjacent.
inline GroupMaps group_maps(const ConstTensorView& x, int64_t stride, int64_t box_groups) {
  const bool paged = x.rank == 4;
  const size_t rows = paged ? 1 : 0;
  const int64_t row_bytes = 2 * x.stride[rows], t = x.shape[rows];
  const auto map = [&](int64_t groups) {
    return make_tma_map({.base = x.data,
                         .dtype = x.dtype,
                         .rank = 4,
                         .size = {x.dim(-2) * x.dim(-1), stride, groups, paged ? x.dim(0) : 1},
                         .stride = {2, row_bytes, stride * row_bytes,
                                    paged ? 2 * x.stride[0] : groups * stride * row_bytes},
                         .box = {kSlice, 1, box_groups, 1},
                         .swizzle = TmaSwizzle::k128});
  };
  return {map(ceil_div(t, stride)), map(t / stride), static_cast<int>(t % stride)};
}

// CTAs of clusters that run at the same time, which the fixed order of items relies on. GPCs whose
// SMs are no multiple of the cluster leave some idle.
template <class C>
int64_t resident_ctas(int64_t ctas) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(ctas));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = sizeof(Shared);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(ctas), 1, 1};
  config.attrs = &cluster;
  config.numAttrs = 1;
  cuda_check(cudaFuncSetAttribute(score_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(sizeof(Shared))),
             "xattn_scores");
  int clusters = 0;
  cuda_check(cudaOccupancyMaxActiveClusters(&clusters, score_kernel<C>, &config), "xattn_scores");
  return clusters * ctas;
}

template <class C>
void launch_kernel(Device& device, const XattnScoresArgs& args) {
  const int64_t cluster = cluster_size(args);
  int64_t ctas = max_ctas(device.info().num_sms, args);
  if (!device.is_dry_run()) {  // which asks no driver, and plans for the most
    static const int64_t resident[] = {resident_ctas<C>(1), resident_ctas<C>(2)};
    ctas = std::min(ctas, resident[cluster - 1]);
  }
  const bool paged = !args.page_table.empty();
  const int64_t share = kColumns / cluster;
  const int64_t box_groups = paged ? std::min(share, args.k.dim(1) / args.stride) : share;
  const Scratch::Scope scope(device.workspace());
  const TensorView partials =
      device.workspace().take(DType::kF32, {ctas, kRows, partial_stride(args)});
  const TensorView maxima = device.workspace().take(DType::kF32, {ctas, column_tiles(args), kRows});
  if (device.is_dry_run()) return;
  // What no query block sees.
  cuda_check(
      cudaMemsetAsync(args.sums.data, 0, static_cast<size_t>(args.sums.bytes()), device.stream()),
      "xattn_scores");
  const Params params{
      .q = group_maps(args.q, args.stride, kRows),
      .k = group_maps(args.k, args.stride, box_groups),
      .cu_q = args.batch.cu_q.as<int>(),
      .cu_kv = args.batch.cu_kv.as<int>(),
      .causal = args.batch.causal,
      .sequences = static_cast<int>(args.batch.size()),
      .heads = static_cast<int>(args.q.dim(1)),
      .group = static_cast<int>(args.q.dim(1) / args.k.dim(-2)),
      .q_blocks = static_cast<int>(args.sums.dim(2)),
      .k_blocks = static_cast<int>(args.sums.dim(3)),
      .ctas = static_cast<int>(cluster),
      .d = static_cast<int>(args.q.dim(2)),
      .slices = static_cast<int>(args.q.dim(2) / kSlice),
      .row_tiles = static_cast<int>(row_tiles(args)),
      .num_items = static_cast<int>(args.batch.size() * args.q.dim(1) / cluster * row_tiles(args)),
      .page_table = paged ? args.page_table.as<int>() : nullptr,
      .table_stride = paged ? args.page_table.stride[0] : 0,
      .page_size = paged ? static_cast<int>(args.k.dim(1)) : 0,
      .box_groups = static_cast<int>(box_groups),
      .scale = args.scale / static_cast<float>(args.stride) * 1.4426950408889634f,
      .sums = args.sums.as<float>(),
      .partials = partials.as<float>(),
      .maxima = maxima.as<float>(),
      .partial_stride = static_cast<int>(partial_stride(args)),
      .column_tiles = static_cast<int>(column_tiles(args)),
  };
  launch(device, "xattn_scores", score_kernel<C>,
         {.grid = ctas,
          .block = kThreads,
          .shared = sizeof(Shared),
          .cluster = static_cast<int>(cluster)},
         params);
}

template <int kStride>
void run_dtypes(Device& device, const XattnScoresArgs& args) {
  if (args.q.dtype == DType::kBF16) {
    launch_kernel<Config<bf16, kStride>>(device, args);
  } else {
    launch_kernel<Config<f16, kStride>>(device, args);
  }
}

}  // namespace dsv4::xattn_scores_kernel::sm90
