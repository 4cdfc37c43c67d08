// Launching a kernel on a device's stream, checked, with its shared memory allowed.
//
//   launch(device, "rms_norm", rms_norm_kernel<T>,
//          {.grid = rows, .block = 256, .shared = bytes}, args...);
//
// An empty grid is no launch: ops are called with zero tokens. The name is what an error says and
// what a profiler shows (NVTX).

#pragma once

#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>

#include <cstdint>

#include "dsv4/device/device.h"
#include "dsv4/device/error.h"

namespace dsv4 {

struct LaunchShape {
  int64_t grid = 1;  // blocks along x
  int block = 256;   // threads
  int64_t grid_y = 1, grid_z = 1;
  int64_t shared = 0;  // bytes of dynamic shared memory
  int cluster = 1;     // blocks of a cluster along x (sm_90)
  // Programmatic dependent launch: the kernel may start while the previous kernel of the stream
  // still runs, and calls ptx::griddepcontrol_wait() itself. Ignored where early_launch() is false.
  //
  // For kernels of few CTAs. A kernel that fills the GPU and has nothing to do before the wait is
  // slower with it: its CTAs go to the SMs that have room first, more to some than to others.
  bool pdl = false;
};

// A kernel needs the attribute for more than 48 KiB in total, static shared memory included;
// setting it for less costs nothing.
inline constexpr int64_t kDefaultShared = 32 << 10;

// Names what is enqueued while it lives: to profilers (NVTX), and to the device's kernel times.
class LaunchMark {
 public:
  LaunchMark(Device& device, const char* name) : device_(device) {
    nvtxRangePushA(name);
    if (device.times() != nullptr) launch_ = device.times()->begin(name, device.stream());
  }
  ~LaunchMark() {
    if (device_.times() != nullptr) device_.times()->end(launch_, device_.stream());
    nvtxRangePop();
  }
  LaunchMark(const LaunchMark&) = delete;
  LaunchMark& operator=(const LaunchMark&) = delete;

 private:
  Device& device_;
  size_t launch_ = 0;
};

template <class... Params, class... Args>
void launch(Device& device, const char* name, void (*kernel)(Params...), const LaunchShape& shape,
            Args&&... args) {
  if (device.is_dry_run() || shape.grid == 0 || shape.grid_y == 0 || shape.grid_z == 0) return;
  const LaunchMark mark(device, name);
  if (shape.shared > kDefaultShared) {
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shape.shared)),
               name);
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.grid), static_cast<unsigned>(shape.grid_y),
                        static_cast<unsigned>(shape.grid_z));
  config.blockDim = dim3(static_cast<unsigned>(shape.block));
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared);
  config.stream = device.stream();
  cudaLaunchAttribute attributes[2]{};
  config.attrs = attributes;
  if (shape.cluster > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  }
  if (shape.pdl && early_launch(device.info())) {
    cudaLaunchAttribute& pdl = attributes[config.numAttrs++];
    pdl.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    pdl.val.programmaticStreamSerializationAllowed = 1;
  }
  cuda_check(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...), name);
  cuda_check_launch(name);
}

}  // namespace dsv4
