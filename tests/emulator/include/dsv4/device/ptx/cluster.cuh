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

template <class T>
void st_async(T* to, uint32_t rank, T value, Mbarrier& barrier) {
  emulator::store_at(to, rank, &value, sizeof(T), &barrier);
}

}  // namespace dsv4::ptx
