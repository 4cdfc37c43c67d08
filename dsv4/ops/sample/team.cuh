// The CTAs that share a row: one, or a cluster of up to 8 (sm_90), whose shared memory all of them
// read.

#pragma once

#include <cstdint>

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/cluster.cuh"

namespace dsv4::sampling {

template <int kCtas>
struct Team {
  static __device__ int rank() { return static_cast<int>(ptx::cluster_ctarank()); }
  static __device__ int64_t row() { return ptx::clusterid_x(); }
  // All threads of the team; what they wrote before it is visible after it. The first warp
  // publishes the writes of its CTA: a release waits for memory, and 32 warps would wait one after
  // the other.
  static __device__ void sync() {
    __syncthreads();
    if (threadIdx.x < kWarp) {
      ptx::cluster_arrive();
    } else {
      ptx::cluster_arrive_relaxed();
    }
    ptx::cluster_wait();
  }
  // The last two calls of a thread, in this order: no CTA ends while another may read from it.
  static __device__ void done_reading() { ptx::cluster_arrive_relaxed(); }
  static __device__ void wait_for_readers() { ptx::cluster_wait(); }
  // Of CTA `rank`, what `mine` is here.
  template <class T>
  static __device__ T load(const T* mine, int rank) {
    return ptx::cluster_load(mine, static_cast<uint32_t>(rank));
  }
};

template <>
struct Team<1> {
  static __device__ int rank() { return 0; }
  static __device__ int64_t row() { return blockIdx.x; }
  static __device__ void sync() { __syncthreads(); }
  static __device__ void done_reading() {}
  static __device__ void wait_for_readers() {}
  template <class T>
  static __device__ T load(const T* mine, int) {
    return *mine;
  }
};

}  // namespace dsv4::sampling
