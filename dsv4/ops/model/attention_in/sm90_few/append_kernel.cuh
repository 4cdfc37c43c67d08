// The kernel of append.h.

#pragma once

#include "dsv4/ops/model/attention_in/sm90_few/append_cluster.cuh"

namespace dsv4::attention_in_kernel::sm90_few {

// grid: num_clusters() clusters
__global__ void __launch_bounds__(kThreads) append_kernel(const __grid_constant__ AppendParams p) {
  ptx::griddepcontrol_launch_dependents();
  auto& shared = *reinterpret_cast<Shared*>(ptx::dynamic_smem());
  start_append(shared);
  ptx::griddepcontrol_wait();
  append_cluster(p, shared, static_cast<int>(ptx::clusterid_x()));
}

}  // namespace dsv4::attention_in_kernel::sm90_few
