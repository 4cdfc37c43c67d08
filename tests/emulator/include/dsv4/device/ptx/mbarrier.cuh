// dsv4/device/ptx/mbarrier.cuh on the emulator.

#pragma once

#include "dsv4/device/ptx/shared_memory.cuh"

namespace dsv4::ptx {

struct alignas(8) Mbarrier {
  uint64_t state;

  void init(uint32_t arrivals) { emulator::mbarrier_init(this, arrivals); }
  void arrive() { emulator::mbarrier_arrive(this); }
  void expect_tx(uint32_t bytes) { emulator::mbarrier_expect(this, bytes); }
  void arrive_cp_async_noinc() { emulator::mbarrier_arrive_after_copies(this); }
  void wait(uint32_t parity) { emulator::mbarrier_wait(this, parity); }
  void arrive_relaxed_cluster(uint32_t rank) { emulator::mbarrier_arrive_at(this, rank); }
  void wait_acquire_cluster(uint32_t parity) { emulator::mbarrier_wait(this, parity); }
};

inline void fence_mbarrier_init() {
}

}  // namespace dsv4::ptx
