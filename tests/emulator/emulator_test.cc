// The emulator itself: what copies in the background do when, and the mistakes that it reports.

#include <gtest/gtest.h>

#include <vector>

#include "dsv4/device/ptx/bulk_copy.cuh"
#include "dsv4/device/ptx/cache_hint.cuh"
#include "dsv4/device/ptx/cluster.cuh"
#include "dsv4/device/ptx/cp_async.cuh"
#include "dsv4/device/ptx/ldmatrix.cuh"
#include "dsv4/device/ptx/named_barrier.cuh"
#include "dsv4/device/ptx/thread.cuh"
#include "tests/emulator/expect_error.h"

namespace dsv4 {
namespace {

using emulator::expect_error;
using emulator::Launch;

constexpr uint32_t kBase = 1024;
constexpr uint64_t kLate = 0;  // a seed: asynchronous operations complete at the last moment

TEST(Emulator, WarpInstructionsNeedEveryLane) {
  std::vector<int> sums(64);
  emulator::launch({.block = 64}, [&] {
    int x = ptx::thread_index();
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    sums[threadIdx.x] = x;
  });
  EXPECT_EQ(sums[5], 31 * 16);
  EXPECT_EQ(sums[40], 31 * 16 + 32 * 32);
  expect_error({.block = 32}, "other lanes of its warp",
               [] { threadIdx.x == 3 ? void(__ballot_sync(~0u, true)) : __syncwarp(); });
  expect_error({.block = 32}, "__syncwarp", [] {
    if (threadIdx.x != 3) __syncwarp();
  });
}

TEST(Emulator, ADeadlockNamesBarriersAndThreads) {
  expect_error({.block = 96}, "at barrier 1, with 32 threads of 64; threads 64-95", [] {
    if (threadIdx.x >= 64) ptx::barrier_sync(1, 64);
  });
  expect_error({.block = 64, .shared = 16}, "for parity 1 of the mbarrier at 1032", [] {
    auto* barriers = reinterpret_cast<ptx::Mbarrier*>(ptx::dynamic_smem());
    if (threadIdx.x == 0) barriers[1].init(1);
    __syncthreads();
    if (threadIdx.x == 0) barriers[1].arrive();
    __syncthreads();
    barriers[1].wait(threadIdx.x == 40 ? 1 : 0);
  });
}

TEST(Emulator, MbarriersMustBeInitializedAndTheirCtaMustRun) {
  expect_error({.block = 32, .shared = 8}, "not initialized",
               [] { reinterpret_cast<ptx::Mbarrier*>(ptx::dynamic_smem())->wait(0); });
  // The other CTA may have ended.
  expect_error({.grid = 2, .block = 32, .cluster = 2, .shared = 8}, "CTA 1", [] {
    auto& barrier = *reinterpret_cast<ptx::Mbarrier*>(ptx::dynamic_smem());
    if (threadIdx.x == 0) barrier.init(1);
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();
    if (ptx::cluster_ctarank() == 1) return;
    for (int i = 0; i < 1000; ++i) ptx::barrier_sync(0, 32);
    if (threadIdx.x == 0) barrier.arrive_relaxed_cluster(1);
  });
}

struct Memory {
  uint32_t word;
  ptx::Mbarrier full;
};

TEST(Emulator, StAsyncInACluster) {
  Launch how{.grid = 4, .block = 64, .cluster = 2, .shared = sizeof(Memory)};
  std::vector<uint32_t> got(4);
  for (how.seed = 0; how.seed < 8; ++how.seed) {
    got.assign(4, 0);
    emulator::launch(how, [&] {
      auto& memory = *reinterpret_cast<Memory*>(ptx::dynamic_smem());
      if (threadIdx.x == 0) memory.full.init(1);
      ptx::cluster_arrive_relaxed();
      ptx::cluster_wait();
      for (uint32_t i = 0; i < 3; ++i) {
        if (threadIdx.x == 7) memory.full.expect_tx(4), memory.full.arrive();
        if (threadIdx.x == 40) {
          const uint32_t rank = ptx::cluster_ctarank();
          ptx::st_async(&memory.word, 1 - rank, 10 * rank + i + 1, memory.full);
        }
        memory.full.wait(i % 2);
        if (threadIdx.x == 0) got[blockIdx.x] += memory.word;
        __syncthreads();
        ptx::cluster_arrive_relaxed();
        ptx::cluster_wait();
      }
    });
    EXPECT_EQ(got, (std::vector<uint32_t>{36, 6, 36, 6}));
  }
}

TEST(Emulator, StAsyncArrivesWithItsBytes) {
  // The value is there when its bytes are counted, not before.
  std::vector<uint32_t> early(2);
  emulator::launch({.grid = 2, .block = 32, .cluster = 2, .shared = sizeof(Memory), .seed = 1},
                   [&] {
                     auto& memory = *reinterpret_cast<Memory*>(ptx::dynamic_smem());
                     if (threadIdx.x == 0) memory.full.init(1);
                     ptx::cluster_arrive_relaxed();
                     ptx::cluster_wait();
                     if (threadIdx.x == 0) {
                       ptx::st_async(&memory.word, ptx::cluster_ctarank(), 5u, memory.full);
                       early[blockIdx.x] = memory.word;
                       memory.full.expect_tx(4), memory.full.arrive();
                     }
                     memory.full.wait(0);
                   });
  EXPECT_EQ(early, (std::vector<uint32_t>{~0u, ~0u}));
}

TEST(Emulator, ClusterRuleViolations) {
  const Launch how{.grid = 4, .block = 64, .cluster = 2, .shared = sizeof(Memory)};
  expect_error({.grid = 2, .block = 32, .cluster = 2, .shared = sizeof(Memory)}, "has ended", [] {
    auto& memory = *reinterpret_cast<Memory*>(ptx::dynamic_smem());
    if (threadIdx.x == 0) memory.full.init(1);
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();
    ptx::st_async(&memory.word, 1, 1u, memory.full);  // no thread waits for it
  });
  expect_error(how, "without a cluster_wait", [] {
    ptx::cluster_arrive_relaxed();
    auto& memory = *reinterpret_cast<Memory*>(ptx::dynamic_smem());
    if (threadIdx.x == 0) {
      memory.full.init(1);
      ptx::st_async(&memory.word, 1 - ptx::cluster_ctarank(), 1u, memory.full);
    }
    ptx::cluster_wait();
  });
  expect_error(how, "without a cluster_arrive", [] { ptx::cluster_wait(); });
  expect_error(how, "again without",
               [] { ptx::cluster_arrive_relaxed(), ptx::cluster_arrive_relaxed(); });
  expect_error(how, "ends between", [] { ptx::cluster_arrive_relaxed(); });
  expect_error(how, "at cluster_wait, with 126 threads of 128", [] {
    if (threadIdx.x == 7) return;
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();
  });
}

TEST(Emulator, TheDestinationOfCpAsyncIsUndefinedUntilTheWait) {
  const std::vector<uint32_t> from(4, 7);
  std::vector<uint32_t> before(2), after(2);
  for (const bool valid : {false, true}) {
    emulator::launch({.block = 64, .shared = 64, .seed = kLate}, [&] {
      auto* memory = reinterpret_cast<uint32_t*>(ptx::dynamic_smem());
      auto& barrier = *reinterpret_cast<ptx::Mbarrier*>(memory + 8);
      if (threadIdx.x == 0) barrier.init(1);
      if (threadIdx.x == 0) memory[0] = 5;
      __syncthreads();
      if (threadIdx.x == 0) {
        ptx::cp_async_zfill(kBase, from.data(), valid);
        barrier.arrive_cp_async_noinc();
        before[valid] = memory[0];
      }
      if (threadIdx.x == 40) barrier.wait(0), after[valid] = memory[3];
    });
  }
  EXPECT_EQ(before, (std::vector<uint32_t>{~0u, ~0u}));
  EXPECT_EQ(after, (std::vector<uint32_t>{0, 7}));
  expect_error({.block = 32, .shared = 64}, "is not a multiple of 16",
               [&] { ptx::cp_async_zfill(kBase + 8, from.data(), true); });
  expect_error({.block = 32, .shared = 64}, "outside 1024 .. 1088", [] {
    uint32_t r[4];
    ptx::ldmatrix_x4(r, kBase + 64);
  });
}

TEST(Emulator, AnMbarrierPhaseWaitsForTheBytesOfBulkCopies) {
  const std::vector<uint32_t> from(12, 7);
  std::vector<uint32_t> seen(4);
  const Launch how{.block = 64, .shared = 128, .seed = kLate};
  emulator::launch(how, [&] {
    auto* memory = reinterpret_cast<uint32_t*>(ptx::dynamic_smem());
    auto& barrier = *reinterpret_cast<ptx::Mbarrier*>(memory + 16);
    if (threadIdx.x == 0) barrier.init(1);
    __syncthreads();
    if (threadIdx.x == 0) {
      ptx::cp_async_bulk(kBase, from.data(), 48, barrier);
      barrier.expect_tx(48);
      seen[0] = memory[0];
      ptx::cp_async_wait_all();  // does not wait for bulk copies
      seen[1] = memory[0];
      barrier.arrive();
    }
    if (threadIdx.x == 40) barrier.wait(0), seen[2] = memory[11], seen[3] = memory[12];
  });
  EXPECT_EQ(seen, (std::vector<uint32_t>{~0u, ~0u, 7, ~0u}));
  const auto barrier_of = [] {
    auto& barrier = reinterpret_cast<ptx::Mbarrier*>(ptx::dynamic_smem())[8];
    if (threadIdx.x == 0) barrier.init(1);
    __syncthreads();
    return &barrier;
  };
  expect_error(how, "0 arrivals of 1 and 16 bytes are missing", [&] {
    ptx::Mbarrier* barrier = barrier_of();
    if (threadIdx.x == 0) barrier->expect_tx(16), barrier->arrive();
    barrier->wait(0);
  });
  expect_error(how, "not multiples of 16", [&] {
    ptx::Mbarrier* barrier = barrier_of();
    if (threadIdx.x == 0) ptx::cp_async_bulk(kBase, from.data(), 24, *barrier);
  });
  const auto leaves_early = [&] {
    ptx::Mbarrier* barrier = barrier_of();
    if (threadIdx.x == 0) ptx::cp_async_bulk(kBase, from.data(), 16, *barrier);
  };
  EXPECT_THROW(emulator::launch(how, leaves_early), Error);  // a seed where copies are late
  expect_error(how, "a bulk copy overwrites what thread", [&] {
    ptx::Mbarrier* barrier = barrier_of();
    if (threadIdx.x < 32) ptx::stmatrix_x4_trans(kBase, {1, 2, 3, 4});
    if (threadIdx.x == 0) ptx::cp_async_bulk_evict_first(kBase, from.data(), 16, *barrier);
  });
  expect_error(how, "counts 1048576 bytes", [&] {
    ptx::Mbarrier* barrier = barrier_of();
    if (threadIdx.x == 0) barrier->expect_tx(1 << 20);
  });
  expect_error(how, "a bulk copy overwrites what thread", [&] {
    ptx::Mbarrier* barrier = barrier_of();
    if (threadIdx.x < 32) ptx::stmatrix_x4_trans(kBase, {1, 2, 3, 4});
    if (threadIdx.x == 0) ptx::cp_async_bulk(kBase, from.data(), 16, *barrier);
  });
}

TEST(Emulator, GlobalLoadsCheckAlignment) {
  alignas(16) const uint32_t from[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  const Launch how{.block = 32, .shared = 16, .seed = 1};
  uint2 two{};
  uint4 four{};
  emulator::launch(how, [&] {
    if (threadIdx.x != 0) return;
    ptx::ld_global_evict_first(from + 2, two);
    ptx::ld_global_evict_first(from + 4, four);
  });
  EXPECT_EQ((std::vector<uint32_t>{two.x, two.y, four.x, four.w}),
            (std::vector<uint32_t>{3, 4, 5, 8}));
  expect_error(how, "load of 8 bytes", [&] { ptx::ld_global_evict_first(from + 1, two); });
  expect_error(how, "load of 16 bytes", [&] { ptx::ld_global_evict_first(from + 2, four); });
}

}  // namespace
}  // namespace dsv4
