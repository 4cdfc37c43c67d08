// dsv4/device/ptx/cluster.cuh on the emulator.

#pragma once

#include "dsv4/device/ptx/mbarrier.cuh"

namespace dsv4::ptx {

inline uint32_t cluster_ctarank() {
  return static_cast<uint32_t>(emulator::cluster_rank());
}
inline uint32_t clusterid_x() {
  return static_cast<uint32_t>(emulator::cluster_id());
}

inline void cluster_arrive_relaxed() {
  emulator::cluster_arrive();
}
inline void cluster_wait() {
  emulator::cluster_wait();
}

inline void st_async(uint32_t* to, uint32_t rank, uint32_t value, Mbarrier& barrier) {
  emulator::store_at(to, rank, &value, sizeof(value), &barrier);
}
inline void st_async(uint2* to, uint32_t rank, uint2 value, Mbarrier& barrier) {
  emulator::store_at(to, rank, &value, sizeof(value), &barrier);
}

}  // namespace dsv4::ptx
