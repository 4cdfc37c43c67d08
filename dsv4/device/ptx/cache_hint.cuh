// Loads with a cache hint, for data that is read once: not allocated in L1, evicted first from L2.

#pragma once

#include <vector_types.h>

#include <cstdint>

namespace dsv4::ptx {

// 8 or 16 aligned bytes of global memory.
__device__ inline void ld_global_evict_first(const void* from, uint2& to) {
  asm volatile(
      "{\n.reg .b64 first;\n"
      "createpolicy.fractional.L2::evict_first.b64 first, 1.0;\n"
      "ld.global.L1::no_allocate.L2::cache_hint.v2.u32 {%0, %1}, [%2], first;\n}"
      : "=r"(to.x), "=r"(to.y)
      : "l"(from)
      : "memory");
}
__device__ inline void ld_global_evict_first(const void* from, uint4& to) {
  asm volatile(
      "{\n.reg .b64 first;\n"
      "createpolicy.fractional.L2::evict_first.b64 first, 1.0;\n"
      "ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], first;\n}"
      : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w)
      : "l"(from)
      : "memory");
}

}  // namespace dsv4::ptx
