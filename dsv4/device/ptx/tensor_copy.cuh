// Tensor copies (sm_90): boxes of a tensor of 1 to 4 axes between global and shared memory, by the
// async proxy, with a tensor map of device/tma_map.h.
//
// One thread issues a copy. `map` points to a __grid_constant__ parameter of the kernel. x, y, z, w
// are the coordinates of the first element of the box, innermost axis first; they may be negative.
// In shared memory the box is dense, innermost axis first, with the swizzle of the map; its address
// is a multiple of 128 (with the 128-byte swizzle of 1024, where wgmma reads it).
// Source: PTX ISA, cp.async.bulk.tensor.

#pragma once

#include <cuda.h>

#include <cstdint>

#include "dsv4/device/ptx/mbarrier.cuh"

namespace dsv4::ptx {

// Global to shared memory. Elements outside the tensor become zeros; all bytes of the box count at
// `barrier`, which has to expect_tx() them. Fence earlier generic-proxy stores to the destination
// (fence_proxy_async).
__device__ inline void cp_async_bulk_tensor_1d(uint32_t to, const CUtensorMap* map,
                                               Mbarrier& barrier, int32_t x) {
  asm volatile(
      "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3}], [%2];" ::"r"(to),
      "l"(map), "r"(smem_address(&barrier)), "r"(x)
      : "memory");
}
__device__ inline void cp_async_bulk_tensor_2d(uint32_t to, const CUtensorMap* map,
                                               Mbarrier& barrier, int32_t x, int32_t y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4}], [%2];" ::"r"(to),
      "l"(map), "r"(smem_address(&barrier)), "r"(x), "r"(y)
      : "memory");
}
// As above, with an evict-first L2 policy, for bytes that are read once.
__device__ inline void cp_async_bulk_tensor_2d_evict_first(uint32_t to, const CUtensorMap* map,
                                                           Mbarrier& barrier, int32_t x,
                                                           int32_t y) {
  asm volatile(
      "{\n.reg .b64 first;\n"
      "createpolicy.fractional.L2::evict_first.b64 first, 1.0;\n"
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4}], [%2], first;\n}" ::"r"(to),
      "l"(map), "r"(smem_address(&barrier)), "r"(x), "r"(y)
      : "memory");
}
__device__ inline void cp_async_bulk_tensor_3d(uint32_t to, const CUtensorMap* map,
                                               Mbarrier& barrier, int32_t x, int32_t y, int32_t z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5}], [%2];" ::"r"(to),
      "l"(map), "r"(smem_address(&barrier)), "r"(x), "r"(y), "r"(z)
      : "memory");
}
__device__ inline void cp_async_bulk_tensor_4d(uint32_t to, const CUtensorMap* map,
                                               Mbarrier& barrier, int32_t x, int32_t y, int32_t z,
                                               int32_t w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
      "l"(map), "r"(smem_address(&barrier)), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

// Copies one box to all CTAs of the cluster whose bit is set in `ctas`: to the same offset of their
// shared memory, counted at the barrier at the same offset. All of them must have passed a
// cluster_wait().
__device__ inline void cp_async_bulk_tensor_1d_multicast(uint32_t to, const CUtensorMap* map,
                                                         Mbarrier& barrier, uint16_t ctas,
                                                         int32_t x) {
  asm volatile(
      "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%4}], [%2], %3;" ::"r"(to),
      "l"(map), "r"(smem_address(&barrier)), "h"(ctas), "r"(x)
      : "memory");
}
__device__ inline void cp_async_bulk_tensor_2d_multicast(uint32_t to, const CUtensorMap* map,
                                                         Mbarrier& barrier, uint16_t ctas,
                                                         int32_t x, int32_t y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%4, %5}], [%2], %3;" ::"r"(to),
      "l"(map), "r"(smem_address(&barrier)), "h"(ctas), "r"(x), "r"(y)
      : "memory");
}
__device__ inline void cp_async_bulk_tensor_3d_multicast(uint32_t to, const CUtensorMap* map,
                                                         Mbarrier& barrier, uint16_t ctas,
                                                         int32_t x, int32_t y, int32_t z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%4, %5, %6}], [%2], %3;" ::"r"(to),
      "l"(map), "r"(smem_address(&barrier)), "h"(ctas), "r"(x), "r"(y), "r"(z)
      : "memory");
}
__device__ inline void cp_async_bulk_tensor_4d_multicast(uint32_t to, const CUtensorMap* map,
                                                         Mbarrier& barrier, uint16_t ctas,
                                                         int32_t x, int32_t y, int32_t z,
                                                         int32_t w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%4, %5, %6, %7}], [%2], %3;" ::"r"(to),
      "l"(map), "r"(smem_address(&barrier)), "h"(ctas), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

// Shared to global memory, in the open bulk group of this thread; elements outside the tensor are
// not written. Before it, fence the stores that wrote the box (fence_proxy_async) and synchronize
// with the threads that made them.
__device__ inline void cp_async_bulk_tensor_1d_store(const CUtensorMap* map, uint32_t from,
                                                     int32_t x) {
  asm volatile(
      "cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%0, {%2}], [%1];" ::"l"(map),
      "r"(from), "r"(x)
      : "memory");
}
__device__ inline void cp_async_bulk_tensor_2d_store(const CUtensorMap* map, uint32_t from,
                                                     int32_t x, int32_t y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
      "r"(from), "r"(x), "r"(y)
      : "memory");
}
__device__ inline void cp_async_bulk_tensor_3d_store(const CUtensorMap* map, uint32_t from,
                                                     int32_t x, int32_t y, int32_t z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(
          map),
      "r"(from), "r"(x), "r"(y), "r"(z)
      : "memory");
}
__device__ inline void cp_async_bulk_tensor_4d_store(const CUtensorMap* map, uint32_t from,
                                                     int32_t x, int32_t y, int32_t z, int32_t w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], "
      "[%1];" ::"l"(map),
      "r"(from), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

// Closes the bulk group of this thread's stores and opens the next one.
__device__ inline void cp_async_bulk_commit_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until at most kGroups of the thread's groups have not completed.
template <int kGroups>
__device__ void cp_async_bulk_wait_group() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kGroups) : "memory");
}
// As above, but completed means here that shared memory has been read: it may be overwritten, and
// the CTA may exit.
template <int kGroups>
__device__ void cp_async_bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kGroups) : "memory");
}

// Brings a tensor map to the cache before its first use.
__device__ inline void prefetch_tensormap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

}  // namespace dsv4::ptx
