// How copies and warps of different roles meet on Hopper, one function per instruction: mbarriers,
// named barriers, clusters, proxies, and registers that move from one role to another.
//
// An mbarrier counts arrivals, and bytes that it is told to expect, and flips its phase when all
// have come. A consumer that waits for use number i of a buffer waits for phase parity i % 2; a
// producer that waits for a buffer to be free for use number i waits for parity (i + 1) % 2, which
// a fresh barrier passes.

#pragma once

#include <cstdint>

#include "dsv4/device/ptx/mma.cuh"

namespace dsv4::ptx {

// Where another block of the cluster has what this one has at `place`.
__device__ inline uint32_t address_in_cluster(const void* place, uint32_t rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(place)), "r"(rank));
  return there;
}

struct alignas(8) Mbarrier {
  uint64_t state;

  __device__ void init(uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)),
                 "r"(arrivals)
                 : "memory");
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
  }
  // The phase ends only when copy_bulk() or store_in_cluster() have brought so many more bytes.
  // Before this thread arrives: until then they may even be ahead of it.
  __device__ void expect(uint32_t bytes) {
    asm volatile(
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)),
        "r"(bytes)
        : "memory");
  }
  // This thread arrives when all cp.async that it has started are done, without waiting here.
  __device__ void arrive_after_copies() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(this))
                 : "memory");
  }
  __device__ void wait(uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra over;\n"
        "bra again;\n"
        "over:\n"
        "}" ::"r"(shared_address(this)),
        "r"(parity)
        : "memory");
  }

  // The same barrier of another block of the cluster, relaxed: it orders nothing that this thread
  // has written (a release would wait for all of that), and what it has read must be in registers.
  __device__ void arrive_in_cluster(uint32_t rank) {
    asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(
                     address_in_cluster(this, rank))
                 : "memory");
  }
  __device__ void wait_in_cluster(uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@done bra over;\n"
        "bra again;\n"
        "over:\n"
        "}" ::"r"(shared_address(this)),
        "r"(parity)
        : "memory");
  }
};

// *place = value, but in the shared memory of another block of the cluster, some time later: who
// waits for the same barrier there has it counted in bytes, as bulk copies, and sees it then.
__device__ inline void store_in_cluster(uint32_t* place, uint32_t rank, uint32_t value,
                                        Mbarrier& barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %2, [%1];" ::"r"(
                   address_in_cluster(place, rank)),
               "r"(address_in_cluster(&barrier, rank)), "r"(value)
               : "memory");
}
__device__ inline void store_in_cluster(uint2* place, uint32_t rank, uint2 value,
                                        Mbarrier& barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%0], {%2, %3}, [%1];" ::"r"(
          address_in_cluster(place, rank)),
      "r"(address_in_cluster(&barrier, rank)), "r"(value.x), "r"(value.y)
      : "memory");
}

__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ inline uint32_t cluster_id() {  // along x
  uint32_t id;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(id));
  return id;
}
// Every thread of every block of the cluster does both, in this order; who is behind cluster_wait()
// sees mbarriers that others had initialised before fence_mbarrier_init() and cluster_arrive(), and
// nothing else. Shared memory of another block may be touched only then.
__device__ inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
}
__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// Makes initialised mbarriers known to copies; then a block barrier.
__device__ inline void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Shared memory written with ordinary stores is about to be read by wgmma, or overwritten by bulk
// copies: on the way of barriers between the two, in the writing thread or one behind it.
__device__ inline void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Named barriers 1 .. 15, for some of a block's warps.
__device__ inline void barrier_sync(int id, int threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// The same, and whether any thread says yes.
__device__ inline bool barrier_any(int id, int threads, bool yes) {
  uint32_t any = 0;
  asm volatile(
      "{\n"
      ".reg .pred in, out;\n"
      "setp.ne.u32 in, %3, 0;\n"
      "barrier.cta.red.or.pred out, %1, %2, in;\n"
      "selp.u32 %0, 1, 0, out;\n"
      "}"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<uint32_t>(yes))
      : "memory");
  return any != 0;
}

// Registers of this warpgroup from here on: all four warps, at the start of the role's branch.
template <int kRegisters>
__device__ void raise_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void lower_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Brings bytes (a multiple of 16, from an address on 16) to L2 in the background.
__device__ inline void prefetch_l2(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

// Bytes (a multiple of 16, both addresses on 16) to shared memory in the background, for whoever
// waits at `barrier`, which has to expect() them. What ordinary stores have left there is fenced
// (fence_proxy_async). One request however long: its writes take a fraction of the time in shared
// memory that those of cp.async do.
__device__ inline void copy_bulk(uint32_t to, const void* from, uint32_t bytes, Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(shared_address(&barrier))
      : "memory");
}
// The same of what will not be wanted again: L2 forgets it before other things.
__device__ inline void copy_bulk_once(uint32_t to, const void* from, uint32_t bytes,
                                      Mbarrier& barrier) {
  asm volatile(
      "{\n.reg .b64 first;\n"
      "createpolicy.fractional.L2::evict_first.b64 first, 1.0;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], first;\n}" ::"r"(to),
      "l"(from), "r"(bytes), "r"(shared_address(&barrier))
      : "memory");
}

// 8 or 16 aligned bytes of global memory that will not be wanted again, as above.
__device__ inline void load_once(const void* from, uint2& to) {
  asm volatile(
      "{\n.reg .b64 first;\n"
      "createpolicy.fractional.L2::evict_first.b64 first, 1.0;\n"
      "ld.global.L1::no_allocate.L2::cache_hint.v2.u32 {%0, %1}, [%2], first;\n}"
      : "=r"(to.x), "=r"(to.y)
      : "l"(from)
      : "memory");
}
__device__ inline void load_once(const void* from, uint4& to) {
  asm volatile(
      "{\n.reg .b64 first;\n"
      "createpolicy.fractional.L2::evict_first.b64 first, 1.0;\n"
      "ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], first;\n}"
      : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w)
      : "l"(from)
      : "memory");
}

// 16 bytes of shared memory become zeros, by an ordinary store.
__device__ inline void store_zeros(uint32_t to) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(to), "r"(0) : "memory");
}

// 16 bytes as cp_async; zeros, and no read, if !valid.
__device__ inline void cp_async_or_zero(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}

}  // namespace dsv4::ptx
