// Thread block clusters (sm_90): rank, cluster barrier, stores to another CTA's shared memory.

#pragma once

#include <vector_types.h>

#include <cstdint>

#include "dsv4/device/ptx/mbarrier.cuh"

namespace dsv4::ptx {

// Rank of this CTA in its cluster.
__device__ inline uint32_t cluster_ctarank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Index of the cluster along x of the grid.
__device__ inline uint32_t clusterid_x() {
  uint32_t id;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(id));
  return id;
}

// The cluster barrier: every thread of every CTA does both, in this order. The
// arrival is relaxed and publishes nothing but mbarriers initialized before
// fence_mbarrier_init(); the wait acquires. Shared memory of another CTA may
// be accessed only after cluster_wait(), when that CTA has started.
__device__ inline void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
// Arrives and publishes all earlier writes of this thread to the threads that wait.
__device__ inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// What CTA `rank` has where this CTA has `mine`. That CTA must not have ended.
__device__ inline uint32_t cluster_load(const uint32_t* mine, uint32_t rank) {
  uint32_t value;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(mapa(mine, rank)) : "memory");
  return value;
}
__device__ inline uint64_t cluster_load(const uint64_t* mine, uint32_t rank) {
  uint64_t value;
  asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(value) : "r"(mapa(mine, rank)) : "memory");
  return value;
}

// Stores `value` asynchronously where CTA `rank` has `to`, and counts its bytes at the same CTA's
// `barrier` (expect_tx); a thread there that has waited for the phase sees the value.
__device__ inline void st_async(uint32_t* to, uint32_t rank, uint32_t value, Mbarrier& barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %2, [%1];" ::"r"(
                   mapa(to, rank)),
               "r"(mapa(&barrier, rank)), "r"(value)
               : "memory");
}
__device__ inline void st_async(uint2* to, uint32_t rank, uint2 value, Mbarrier& barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%0], {%2, %3}, [%1];" ::"r"(
          mapa(to, rank)),
      "r"(mapa(&barrier, rank)), "r"(value.x), "r"(value.y)
      : "memory");
}

}  // namespace dsv4::ptx
