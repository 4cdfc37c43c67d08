// The launch of the Hopper kernel (kernel.cuh).

#pragma once

#include <algorithm>

#include "dsv4/device/launch.cuh"
#include "dsv4/ops/xattn/scores/sm90/kernel.cuh"
#include "dsv4/ops/xattn/scores/sm90/params.cuh"

namespace dsv4::xattn_scores_kernel::sm90 {

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
  const Scratch::Scope scope(device.workspace());
  const TensorView partials =
      device.workspace().take(DType::kF32, {ctas, kRows, partial_stride(args)});
  const TensorView maxima = device.workspace().take(DType::kF32, {ctas, column_tiles(args), kRows});
  if (device.is_dry_run()) return;
  // What no query block sees.
  cuda_check(
      cudaMemsetAsync(args.sums.data, 0, static_cast<size_t>(args.sums.bytes()), device.stream()),
      "xattn_scores");
  const Params params = make_params<C>(args, partials.as<float>(), maxima.as<float>(),
                                       [](const TmaBox& box) { return make_tma_map(box); });
  launch(device, "xattn_scores", score_kernel<C>,
         {.grid = ctas,
          .block = kThreads,
          .shared = sizeof(Shared),
          .cluster = static_cast<int>(cluster)},
         params);
}

template <int kGroups>
void run_groups(Device& device, const XattnScoresArgs& args) {
  if (args.q.dtype == DType::kBF16) {
    launch_kernel<Config<bf16, kGroups>>(device, args);
  } else {
    launch_kernel<Config<f16, kGroups>>(device, args);
  }
}

}  // namespace dsv4::xattn_scores_kernel::sm90
