// Clusters of more than 8 CTAs (sm_90), the largest number that every GPU with clusters forms.

#pragma once

#include "dsv4/device/launch.cuh"

namespace dsv4 {

// Allows `kernel` such clusters; returns how many of this shape the GPU runs at a time. 0: it does
// not form them, and a launch would fail.
template <class... Params>
int allow_wide_clusters(void (*kernel)(Params...), const LaunchShape& shape) {
  constexpr const char* kWhat = "allow_wide_clusters";
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shape.shared)),
             kWhat);
  cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
             kWhat);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.cluster));
  config.blockDim = dim3(static_cast<unsigned>(shape.block));
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared);
  config.attrs = &cluster;
  config.numAttrs = 1;
  int count = 0;
  cuda_check(cudaOccupancyMaxActiveClusters(&count, kernel, &config), kWhat);
  return count;
}

}  // namespace dsv4
