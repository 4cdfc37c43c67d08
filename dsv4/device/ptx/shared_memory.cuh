// Addresses of shared memory as instructions take them: 32 bits in the shared window.

#pragma once

#include <cstdint>

namespace dsv4::ptx {

// The CTA's dynamic shared memory, aligned to 1024 bytes.
__device__ inline unsigned char* dynamic_smem() {
  extern __shared__ __align__(1024) unsigned char memory[];
  return memory;
}

// In a cluster, bits 24 and up are the rank of the CTA.
__device__ inline uint32_t smem_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
// `address` without the rank: bytes from the start of the CTA's shared memory.
__device__ inline uint32_t smem_offset(uint32_t address) {
  return address & ((1u << 24) - 1);
}

// The address in CTA `rank` of the cluster that corresponds to `pointer` in this CTA.
__device__ inline uint32_t mapa(const void* pointer, uint32_t rank) {
  uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(remote)
      : "r"(smem_address(pointer)), "r"(rank));
  return remote;
}

// Stores 16 bytes of zeros (an ordinary, generic-proxy store).
__device__ inline void st_shared_v4_zero(uint32_t to) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
}

}  // namespace dsv4::ptx
