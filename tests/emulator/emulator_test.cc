// The emulator itself: what copies and products do when, and which mistakes it names.

#include <gtest/gtest.h>

#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/device/ptx/bulk_copy.cuh"
#include "dsv4/device/ptx/cache_hint.cuh"
#include "dsv4/device/ptx/cluster.cuh"
#include "dsv4/device/ptx/cp_async.cuh"
#include "dsv4/device/ptx/fence.cuh"
#include "dsv4/device/ptx/ldmatrix.cuh"
#include "dsv4/device/ptx/mbarrier.cuh"
#include "dsv4/device/ptx/named_barrier.cuh"
#include "dsv4/device/ptx/shared_memory.cuh"
#include "dsv4/device/ptx/smem_desc.cuh"
#include "dsv4/device/ptx/thread.cuh"
#include "dsv4/device/ptx/wgmma.cuh"
#include "dsv4/formats/float16.h"
#include "tests/emulator/launch.h"

namespace dsv4 {
namespace {

using emulator::Launch;

constexpr uint32_t kBase = 1024;
constexpr uint64_t kLate = 0;  // a seed

// The launch fails with a message that has `part` in it, for every seed.
template <class Kernel>
void expect_error(Launch how, const std::string& part, const Kernel& kernel) {
  for (how.seed = 0; how.seed < 8; ++how.seed) {
    try {
      emulator::launch(how, kernel);
      ADD_FAILURE() << "expected an error about " << part;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST(Emulator, LanesMeetOrItIsAnError) {
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

TEST(Emulator, DeadlocksSayWhoWaitsForWhat) {
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

TEST(Emulator, BarriersThatAreNone) {
  expect_error({.block = 32, .shared = 8}, "not initialised",
               [] { reinterpret_cast<ptx::Mbarrier*>(ptx::dynamic_smem())->wait(0); });
  // The other block may have ended.
  expect_error({.grid = 2, .block = 32, .cluster = 2, .shared = 8}, "block 1", [] {
    auto& barrier = *reinterpret_cast<ptx::Mbarrier*>(ptx::dynamic_smem());
    if (threadIdx.x == 0) barrier.init(1);
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();
    if (ptx::cluster_ctarank() == 1) return;
    for (int i = 0; i < 1000; ++i) ptx::barrier_sync(0, 32);
    if (threadIdx.x == 0) barrier.arrive_relaxed_cluster(1);
  });
}

TEST(Emulator, ClustersMeetBeforeTheyTouchEachOther) {
  struct Memory {
    uint32_t word;
    ptx::Mbarrier full;
  };
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
  // What is stored is there when its bytes are counted, not before.
  how.seed = 1;
  std::vector<uint32_t> early(2);
  emulator::launch({.grid = 2, .block = 32, .cluster = 2, .shared = sizeof(Memory)}, [&] {
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
  expect_error({.grid = 2, .block = 32, .cluster = 2, .shared = sizeof(Memory)}, "has ended", [] {
    auto& memory = *reinterpret_cast<Memory*>(ptx::dynamic_smem());
    if (threadIdx.x == 0) memory.full.init(1);
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();
    ptx::st_async(&memory.word, 1, 1u, memory.full);  // nobody waits for any of them
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

TEST(Emulator, NobodyKnowsWhereACopyIsUntilItIsWaitedFor) {
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
  expect_error({.block = 32, .shared = 64}, "is not on 16",
               [&] { ptx::cp_async_zfill(kBase + 8, from.data(), true); });
  expect_error({.block = 32, .shared = 64}, "outside 1024 .. 1088", [] {
    uint32_t r[4];
    ptx::ldmatrix_x4(r, kBase + 64);
  });
}

TEST(Emulator, APhaseWaitsForTheBytesOfBulkCopies) {
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
      ptx::cp_async_wait_all();  // knows nothing of them
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
  expect_error(how, "not on 16", [&] {
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

TEST(Emulator, LoadsWantTheirAlignment) {
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

// A [64, 16]: row + 2 k; B [16, n]: 3 k + n, both small enough for bf16.
float a_value(int row, int k) {
  return static_cast<float>(row + 2 * k);
}
float b_value(int k, int n) {
  return static_cast<float>(3 * k + n);
}
uint32_t pair(float low, float high) {
  return uint32_t{f32_to_bf16(high)} << 16 | f32_to_bf16(low);
}

// B to the swizzled tile that wgmma reads, and this lane's part of A.
template <int kN, int kTransposed>
void fill(uint32_t (&a)[4]) {
  auto* tile = reinterpret_cast<uint16_t*>(ptx::dynamic_smem());
  if (threadIdx.x == 0) {
    for (int k = 0; k < 16; ++k) {
      for (int n = 0; n < kN; ++n) {
        const int row = kTransposed ? k : n, column = kTransposed ? n % 64 : k;
        const int at = 8 * (column / 8 ^ row % 8) + column % 8;
        tile[(kTransposed ? n / 64 * 1024 : 0) + 64 * row + at] = f32_to_bf16(b_value(k, n));
      }
    }
  }
  const int lane = ptx::thread_index() % 32, warp = ptx::thread_index() / 32;
  for (int i = 0; i < 4; ++i) {
    const int row = 16 * warp + lane / 4 + 8 * (i % 2), k = 2 * (lane % 4) + 8 * (i / 2);
    a[i] = pair(a_value(row, k), a_value(row, k + 1));
  }
  ptx::fence_proxy_async();
  __syncthreads();
}

template <int kN, int kTransposed>
void check_product(uint64_t seed) {
  std::vector<float> got(64 * kN), early(128);
  emulator::launch({.block = 128, .shared = 32 << 10, .seed = seed}, [&] {
    uint32_t a[4];
    fill<kN, kTransposed>(a);
    float d[kN / 2];
    for (float& x : d) x = 1.f;
    for (int i = 0; i < 2; ++i) {  // 1 + twice the product
      ptx::wgmma_fence();
      ptx::Wgmma<__nv_bfloat16, kN, kTransposed>::run(d, a, ptx::make_smem_desc_128B(kBase, 2048),
                                                      1);
      ptx::wgmma_commit_group();
    }
    early[threadIdx.x] = d[0];
    ptx::wgmma_wait_group<0>();
    const int lane = ptx::thread_index() % 32, row = ptx::thread_index() / 32 * 16 + lane / 4;
    for (int i = 0; i < kN / 2; ++i)
      got[static_cast<size_t>((row + i / 2 % 2 * 8) * kN + i / 4 * 8 + lane % 4 * 2 + i % 2)] =
          d[i];
  });
  if (seed == kLate) {
    EXPECT_EQ(early, std::vector<float>(128, 1.f));
  }
  for (int row = 0; row < 64; ++row) {
    for (int n = 0; n < kN; ++n) {
      float want = 1;
      for (int k = 0; k < 16; ++k) want += 2 * a_value(row, k) * b_value(k, n);
      ASSERT_EQ(got[static_cast<size_t>(row * kN + n)], want) << row << ' ' << n;
    }
  }
}

TEST(Emulator, ProductsOfAWarpgroup) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    check_product<8, 0>(seed);
    check_product<32, 0>(seed);
    check_product<64, 1>(seed);
    check_product<128, 1>(seed);
  }
}

// What must not happen between asking for a product and its end, or before.
template <class Between>
auto product_with(const Between& between) {
  return [between] {
    uint32_t a[4];
    fill<8, 0>(a);
    float d[4] = {};
    ptx::wgmma_fence();
    if (!between(a)) return;
    ptx::Wgmma<__nv_bfloat16, 8>::run(d, a, ptx::make_smem_desc_128B(kBase), 1);
    ptx::wgmma_commit_group();
    between(a);
    ptx::wgmma_wait_group<0>();
  };
}

TEST(Emulator, ProductsThatBreakARule) {
  const Launch how{.block = 128, .shared = 4096};
  expect_error(how, "took part in", product_with([](auto&) { return threadIdx.x < 96; }));
  expect_error(how, "without fence_proxy_async", product_with([](auto&) {
                 ptx::stmatrix_x2_trans(kBase + 128 * (threadIdx.x % 8), 0, 0);
                 return true;
               }));
  expect_error(how, "no wgmma_fence", product_with([](auto&) {
                 ptx::wgmma_wait_group<0>();
                 return true;
               }));
  EXPECT_THROW(emulator::launch({.block = 128, .shared = 4096, .seed = kLate},
                                product_with([](auto& a) { return ++a[1] != 0; })),
               Error);
}

// B comes as a copy, a barrier tells `teller` of it, and he tells the others.
auto product_of_copy(const std::vector<uint32_t>& b, bool teller_fences, bool fence_too_early) {
  return [=, &b] {
    uint32_t a[4];
    fill<8, 0>(a);
    auto* barriers = reinterpret_cast<ptx::Mbarrier*>(ptx::dynamic_smem() + 2048);
    const bool copier = threadIdx.x == 0, teller = threadIdx.x == 77;
    if (copier) barriers[0].init(1), barriers[1].init(1);
    __syncthreads();
    if (copier) ptx::cp_async_zfill(kBase, b.data(), true), barriers[0].arrive_cp_async_noinc();
    if (fence_too_early) ptx::fence_proxy_async();
    if (teller) {
      barriers[0].wait(0);
      if (teller_fences) ptx::fence_proxy_async();
      barriers[1].arrive();
    }
    barriers[1].wait(0);
    if (!teller_fences && !fence_too_early) ptx::fence_proxy_async();
    float d[4] = {};
    ptx::wgmma_fence();
    ptx::Wgmma<__nv_bfloat16, 8>::run(d, a, ptx::make_smem_desc_128B(kBase), 1);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
  };
}

TEST(Emulator, AFenceAnywhereBetweenWriteAndProduct) {
  const std::vector<uint32_t> b(4);
  Launch how{.block = 128, .shared = 4096};
  for (how.seed = 0; how.seed < 8; ++how.seed) {
    for (const bool teller_fences : {false, true})
      EXPECT_NO_THROW(emulator::launch(how, product_of_copy(b, teller_fences, false)));
  }
  expect_error(how, "without fence_proxy_async", product_of_copy(b, false, true));
}

}  // namespace
}  // namespace dsv4
