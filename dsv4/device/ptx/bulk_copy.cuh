// Bulk copies (sm_90): one request for any number of bytes, by the async proxy. Sizes and both
// addresses are multiples of 16 bytes.

#pragma once

#include <cstdint>

#include "dsv4/device/ptx/mbarrier.cuh"

namespace dsv4::ptx {

// Global to shared memory; the bytes count at `barrier`, which needs expect_tx() for them. Earlier
// generic-proxy stores to the destination need fence_proxy_async(). The writes take a fraction of
// the shared memory cycles that those of cp.async take.
__device__ inline void cp_async_bulk(uint32_t to, const void* from, uint32_t bytes,
                                     Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(smem_address(&barrier))
      : "memory");
}
// As above, with an evict-first L2 policy, for bytes that are read once.
__device__ inline void cp_async_bulk_evict_first(uint32_t to, const void* from, uint32_t bytes,
                                                 Mbarrier& barrier) {
  asm volatile(
      "{\n.reg .b64 first;\n"
      "createpolicy.fractional.L2::evict_first.b64 first, 1.0;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], first;\n}" ::"r"(to),
      "l"(from), "r"(bytes), "r"(smem_address(&barrier))
      : "memory");
}

// Global memory to L2.
__device__ inline void cp_async_bulk_prefetch_l2(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

}  // namespace dsv4::ptx
