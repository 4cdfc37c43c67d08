// dsv4/device/ptx/mbarrier.cuh on the emulator.

#pragma once

#include "dsv4/device/ptx/mma.cuh"

namespace dsv4::ptx {

struct alignas(8) Mbarrier {
  uint64_t state;

  void init(uint32_t arrivals) { emulator::mbarrier_init(this, arrivals); }
  void arrive() { emulator::mbarrier_arrive(this); }
  void expect(uint32_t bytes) { emulator::mbarrier_expect(this, bytes); }
  void arrive_after_copies() { emulator::mbarrier_arrive_after_copies(this); }
  void wait(uint32_t parity) { emulator::mbarrier_wait(this, parity); }
  void arrive_in_cluster(uint32_t rank) { emulator::mbarrier_arrive_at(this, rank); }
  void wait_in_cluster(uint32_t parity) { emulator::mbarrier_wait(this, parity); }
};

template <class T>
void store_in_cluster(T* place, uint32_t rank, T value, Mbarrier& barrier) {
  emulator::store_at(place, rank, &value, sizeof(T), &barrier);
}

inline uint32_t cluster_rank() {
  return static_cast<uint32_t>(emulator::cluster_rank());
}
inline uint32_t cluster_id() {
  return static_cast<uint32_t>(emulator::cluster_id());
}
inline void cluster_arrive() {
  emulator::cluster_arrive();
}
inline void cluster_wait() {
  emulator::cluster_wait();
}

inline void fence_mbarrier_init() {
}
inline void fence_proxy_async() {
  emulator::fence_proxy_async();
}

inline void barrier_sync(int id, int threads) {
  emulator::barrier(id, threads, false);
}
inline bool barrier_any(int id, int threads, bool yes) {
  return emulator::barrier(id, threads, yes);
}

template <int kRegisters>
void raise_registers() {
}
template <int kRegisters>
void lower_registers() {
}

inline void prefetch_l2(const void*, uint32_t) {
}

inline void copy_bulk(uint32_t to, const void* from, uint32_t bytes, Mbarrier& barrier) {
  emulator::copy_bulk(to, from, bytes, &barrier);
}

inline void copy_bulk_once(uint32_t to, const void* from, uint32_t bytes, Mbarrier& barrier) {
  copy_bulk(to, from, bytes, barrier);
}

inline void load_once(const void* from, uint2& to) {
  emulator::load(from, &to, sizeof(to));
}
inline void load_once(const void* from, uint4& to) {
  emulator::load(from, &to, sizeof(to));
}

inline void store_zeros(uint32_t to) {
  emulator::store_zeros(to);
}

inline void cp_async_or_zero(uint32_t to, const void* from, bool valid) {
  emulator::copy(to, from, 16, valid);
}

}  // namespace dsv4::ptx
