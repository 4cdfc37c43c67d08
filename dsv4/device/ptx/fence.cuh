// Fences between the generic proxy (ordinary loads and stores, cp.async, stmatrix) and the async
// proxy (wgmma operands in shared memory, bulk copies).

#pragma once

namespace dsv4::ptx {

// Orders generic-proxy accesses to shared memory, by this thread or by threads that it has waited
// for, before later async-proxy accesses. It must be between the write and the wgmma that reads it
// (or the bulk copy that overwrites it), in the writing thread or in one that has waited for it.
__device__ inline void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// fence_proxy_async() for global memory that bulk copies of other CTAs read.
__device__ inline void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

}  // namespace dsv4::ptx
