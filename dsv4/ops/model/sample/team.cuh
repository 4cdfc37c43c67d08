// The CTAs that share a row: one, or a cluster of up to 8 (sm_90), and how they exchange numbers.
//
// A hop is an exchange: CTAs store values asynchronously into the shared memory of the others
// (st.async), and each waits until all bytes that it expects have arrived. A thread needs no other
// barrier to read them. A hop's buffer is written again only after every reader has sent something
// that the new writer has waited for; where nothing else ensures that, hops have two buffers, used
// in alternation.
//
// In a team of one CTA, a store is a store and the wait is a barrier.

#pragma once

#include <vector_types.h>

#include <cstdint>

#include "dsv4/device/math.cuh"
#include "dsv4/device/ptx/cluster.cuh"

namespace dsv4::sample_kernel {

enum Hop : int {
  kRowCopy,  // no exchange: the copy of the row to shared memory
  kWarpValues,
  kWarpValues2,
  kGroupSums,
  kBinSums,
  kBinSums2,
  kList,
  kFound,
  kTop,
  kHops
};

template <int kCtas>
class Team {
 public:
  struct Shared {
    ptx::Mbarrier hops[kHops];
  };
  __device__ explicit Team(Shared& shared) : shared_(shared) {}

  static __device__ int rank() { return static_cast<int>(ptx::cluster_ctarank()); }
  static __device__ int64_t row() { return ptx::clusterid_x(); }

  // All threads, before the first hop; then wait_for_start(), before the first send().
  __device__ void start() {
    if (threadIdx.x == 0) {
      for (ptx::Mbarrier& hop : shared_.hops) hop.init(1);
      ptx::fence_mbarrier_init();
    }
    __syncthreads();
    ptx::cluster_arrive_relaxed();
  }
  __device__ void wait_for_start() { ptx::cluster_wait(); }

  // By one thread of a receiver, once a hop, before or after bytes arrive.
  __device__ void expect(int hop, uint32_t bytes) {
    shared_.hops[hop].expect_tx(bytes);
    shared_.hops[hop].arrive();
  }
  // Stores where CTA `rank` has `to`.
  __device__ void send(int hop, int rank, uint32_t* to, uint32_t value) {
    ptx::st_async(to, static_cast<uint32_t>(rank), value, shared_.hops[hop]);
  }
  __device__ void send(int hop, int rank, uint64_t* to, uint64_t value) {
    ptx::st_async(reinterpret_cast<uint2*>(to), static_cast<uint32_t>(rank),
                  uint2{static_cast<uint32_t>(value), static_cast<uint32_t>(value >> 32)},
                  shared_.hops[hop]);
  }
  // All threads of a receiver call this.
  __device__ void wait(int hop) {
    shared_.hops[hop].wait_acquire_cluster(phases_ >> hop & 1);
    phases_ ^= 1u << hop;
  }
  // One warp waits, which has also sent all that its own CTA sends; the others call pass().
  __device__ void wait_in_warp(int hop) { wait(hop); }
  __device__ void pass(int hop) { phases_ ^= 1u << hop; }

  __device__ ptx::Mbarrier& copy_barrier() { return shared_.hops[kRowCopy]; }

 private:
  Shared& shared_;
  uint32_t phases_ = 0;  // bit `hop`: parity of the phase to wait for
};

template <>
class Team<1> {
 public:
  struct Shared {};
  __device__ explicit Team(Shared&) {}

  static __device__ int rank() { return 0; }
  static __device__ int64_t row() { return blockIdx.x; }
  __device__ void start() { __syncthreads(); }
  __device__ void wait_for_start() {}
  __device__ void expect(int, uint32_t) {}
  template <class T>
  __device__ void send(int, int, T* to, T value) {
    *to = value;
  }
  __device__ void wait(int) { __syncthreads(); }
  __device__ void wait_in_warp(int) { __syncwarp(); }
  __device__ void pass(int) {}
};

}  // namespace dsv4::sample_kernel
