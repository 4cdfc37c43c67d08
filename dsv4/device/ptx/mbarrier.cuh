// mbarriers (sm_90): count arrivals and, after expect_tx(), bytes; the phase completes when both
// counts reach zero.
//
// A consumer that waits for use i of a buffer waits for phase parity i % 2. A producer that waits
// until the buffer is free for use i waits for parity (i + 1) % 2, which a fresh barrier passes.

#pragma once

#include <cstdint>

#include "dsv4/device/ptx/shared_memory.cuh"

namespace dsv4::ptx {

struct alignas(8) Mbarrier {
  uint64_t state;

  __device__ void init(uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_address(this)), "r"(arrivals)
                 : "memory");
  }

  // Release at CTA scope. No wait for loads of memory that a bulk copy then fills: docs/lessons.md.
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_address(this)) : "memory");
  }
  // The current phase also waits for `bytes` of cp_async_bulk() or st_async(). Call before this
  // thread's own arrival of the phase; the bytes may already have landed. Relaxed.
  __device__ void expect_tx(uint32_t bytes) {
    asm volatile(
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(smem_address(this)),
        "r"(bytes)
        : "memory");
  }
  // Arrives, without blocking, once all cp.async of this thread so far have completed. The arrival
  // counts against the number given to init() (noinc).
  __device__ void arrive_cp_async_noinc() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(smem_address(this))
                 : "memory");
  }
  // Acquire at CTA scope.
  __device__ void wait(uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra over;\n"
        "bra again;\n"
        "over:\n"
        "}" ::"r"(smem_address(this)),
        "r"(parity)
        : "memory");
  }

  // Arrives at the same barrier of CTA `rank`. Relaxed: it publishes no write
  // of this thread (a release would wait for all of them), and whatever this
  // thread read must already be in registers.
  __device__ void arrive_relaxed_cluster(uint32_t rank) {
    asm volatile(
        "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(mapa(this, rank))
        : "memory");
  }
  // Acquire at cluster scope: what other CTAs released or sent with st_async() is visible.
  __device__ void wait_acquire_cluster(uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@done bra over;\n"
        "bra again;\n"
        "over:\n"
        "}" ::"r"(smem_address(this)),
        "r"(parity)
        : "memory");
  }
};

// Release at cluster scope of mbarrier.init, for other threads, CTAs and copies; follow it with a
// CTA or cluster barrier.
__device__ inline void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

}  // namespace dsv4::ptx
