// dsv4/device/ptx/bulk_copy.cuh on the emulator.

#pragma once

#include "dsv4/device/ptx/mbarrier.cuh"

namespace dsv4::ptx {

inline void cp_async_bulk(uint32_t to, const void* from, uint32_t bytes, Mbarrier& barrier) {
  emulator::copy_bulk(to, from, bytes, &barrier);
}
inline void cp_async_bulk_evict_first(uint32_t to, const void* from, uint32_t bytes,
                                      Mbarrier& barrier) {
  cp_async_bulk(to, from, bytes, barrier);
}

inline void cp_async_bulk_prefetch_l2(const void*, uint32_t) {
}

}  // namespace dsv4::ptx
