// dsv4/device/ptx/tensor_copy.cuh on the emulator.

#pragma once

#include <cuda.h>

#include "dsv4/device/ptx/mbarrier.cuh"

namespace dsv4::ptx {

inline void cp_async_bulk_tensor_1d(uint32_t to, const CUtensorMap* map, Mbarrier& barrier,
                                    int32_t x) {
  emulator::copy_tensor(to, map, {x}, &barrier);
}
inline void cp_async_bulk_tensor_2d(uint32_t to, const CUtensorMap* map, Mbarrier& barrier,
                                    int32_t x, int32_t y) {
  emulator::copy_tensor(to, map, {x, y}, &barrier);
}
inline void cp_async_bulk_tensor_2d_evict_first(uint32_t to, const CUtensorMap* map,
                                                Mbarrier& barrier, int32_t x, int32_t y) {
  emulator::copy_tensor(to, map, {x, y}, &barrier);
}
inline void cp_async_bulk_tensor_3d(uint32_t to, const CUtensorMap* map, Mbarrier& barrier,
                                    int32_t x, int32_t y, int32_t z) {
  emulator::copy_tensor(to, map, {x, y, z}, &barrier);
}
inline void cp_async_bulk_tensor_4d(uint32_t to, const CUtensorMap* map, Mbarrier& barrier,
                                    int32_t x, int32_t y, int32_t z, int32_t w) {
  emulator::copy_tensor(to, map, {x, y, z, w}, &barrier);
}

inline void cp_async_bulk_tensor_1d_multicast(uint32_t to, const CUtensorMap* map,
                                              Mbarrier& barrier, uint16_t ctas, int32_t x) {
  emulator::copy_tensor_to(ctas, to, map, {x}, &barrier);
}
inline void cp_async_bulk_tensor_2d_multicast(uint32_t to, const CUtensorMap* map,
                                              Mbarrier& barrier, uint16_t ctas, int32_t x,
                                              int32_t y) {
  emulator::copy_tensor_to(ctas, to, map, {x, y}, &barrier);
}
inline void cp_async_bulk_tensor_3d_multicast(uint32_t to, const CUtensorMap* map,
                                              Mbarrier& barrier, uint16_t ctas, int32_t x,
                                              int32_t y, int32_t z) {
  emulator::copy_tensor_to(ctas, to, map, {x, y, z}, &barrier);
}
inline void cp_async_bulk_tensor_4d_multicast(uint32_t to, const CUtensorMap* map,
                                              Mbarrier& barrier, uint16_t ctas, int32_t x,
                                              int32_t y, int32_t z, int32_t w) {
  emulator::copy_tensor_to(ctas, to, map, {x, y, z, w}, &barrier);
}

inline void cp_async_bulk_tensor_1d_store(const CUtensorMap* map, uint32_t from, int32_t x) {
  emulator::store_tensor(map, {x}, from);
}
inline void cp_async_bulk_tensor_2d_store(const CUtensorMap* map, uint32_t from, int32_t x,
                                          int32_t y) {
  emulator::store_tensor(map, {x, y}, from);
}
inline void cp_async_bulk_tensor_3d_store(const CUtensorMap* map, uint32_t from, int32_t x,
                                          int32_t y, int32_t z) {
  emulator::store_tensor(map, {x, y, z}, from);
}
inline void cp_async_bulk_tensor_4d_store(const CUtensorMap* map, uint32_t from, int32_t x,
                                          int32_t y, int32_t z, int32_t w) {
  emulator::store_tensor(map, {x, y, z, w}, from);
}

inline void cp_async_bulk_commit_group() {
  emulator::bulk_commit();
}
template <int kGroups>
void cp_async_bulk_wait_group() {
  emulator::bulk_wait(kGroups);
}
template <int kGroups>
void cp_async_bulk_wait_group_read() {
  emulator::bulk_wait_read(kGroups);
}

inline void prefetch_tensormap(const CUtensorMap*) {
}

}  // namespace dsv4::ptx
