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
inline void cluster_arrive() {
  emulator::cluster_arrive();
}
inline void cluster_wait() {
  emulator::cluster_wait();
}

inline uint32_t cluster_load(const uint32_t* mine, uint32_t rank) {
  uint32_t value = 0;
  emulator::load_from(mine, rank, &value, sizeof(value));
  return value;
}
inline uint64_t cluster_load(const uint64_t* mine, uint32_t rank) {
  uint64_t value = 0;
  emulator::load_from(mine, rank, &value, sizeof(value));
  return value;
}

inline void st_async(uint32_t* to, uint32_t rank, uint32_t value, Mbarrier& barrier) {
  emulator::store_at(to, rank, &value, sizeof(value), &barrier);
}
inline void st_async(uint2* to, uint32_t rank, uint2 value, Mbarrier& barrier) {
  emulator::store_at(to, rank, &value, sizeof(value), &barrier);
}

}  // namespace dsv4::ptx
