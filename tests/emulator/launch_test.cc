// Grids and CTAs of every shape, and __shared__ variables.

#include <gtest/gtest.h>

#include <vector>

#include "dsv4/device/ptx/bulk_copy.cuh"
#include "dsv4/device/ptx/cluster.cuh"
#include "dsv4/device/ptx/fence.cuh"
#include "dsv4/device/ptx/ldmatrix.cuh"
#include "dsv4/device/ptx/named_barrier.cuh"
#include "tests/emulator/expect_error.h"

namespace dsv4 {
namespace {

using emulator::expect_error;
using emulator::Launch;

TEST(EmulatorLaunch, EveryThreadOfAGridInThreeDimensionsRunsOnce) {
  Launch how{.grid = {2, 3, 2}, .block = {5, 2, 3}};
  std::vector<int> count(2 * 3 * 2 * 5 * 2 * 3);
  for (how.resident = 1; how.resident <= 3; ++how.resident) {
    count.assign(count.size(), 0);
    emulator::launch(how, [&] {
      const unsigned cta = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
      const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
      ++count[cta * blockDim.x * blockDim.y * blockDim.z + thread];
    });
    EXPECT_EQ(count, std::vector<int>(count.size(), 1));
  }
}

TEST(EmulatorLaunch, ClustersLieAlongX) {
  std::vector<uint32_t> ranks(12), ids(12);
  emulator::launch({.grid = {4, 3}, .cluster = 2}, [&] {
    if (threadIdx.x > 0) return;
    ranks[blockIdx.x + 4 * blockIdx.y] = ptx::cluster_ctarank();
    ids[blockIdx.x + 4 * blockIdx.y] = ptx::clusterid_x();
  });
  EXPECT_EQ(ranks, (std::vector<uint32_t>{0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(ids, (std::vector<uint32_t>{0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1}));
}

TEST(EmulatorLaunch, MessagesNameTheCtaByItsCoordinates) {
  expect_error({.grid = {2, 2}}, "CTA 1,0,0 thread 3: is at __trap", [] {
    if (blockIdx.x == 1 && blockIdx.y == 0 && threadIdx.x == 3) __trap();
  });
}

// 40 threads: a warp of 32 lanes and one of 8.
TEST(EmulatorLaunch, PartialWarps) {
  Launch how{.block = 40, .shared = 64};
  for (how.seed = 0; how.seed < 8; ++how.seed) {
    std::vector<int> sums(40);
    std::vector<unsigned> ballots(40);
    emulator::launch(how, [&] {
      int x = 1;
      for (int step = 4; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
      __syncthreads();
      __syncwarp();
      ptx::barrier_sync(1, 64);
      sums[threadIdx.x] = x;
      ballots[threadIdx.x] = __ballot_sync(~0u, true);
    });
    EXPECT_EQ(sums, std::vector<int>(40, 8));
    EXPECT_EQ(ballots[0], ~0u);
    EXPECT_EQ(ballots[39], 0xffu);
  }
  expect_error(how, "from lane 8, which does not exist", [] { __shfl_xor_sync(~0u, 1, 8); });
  expect_error(how, "ldmatrix in a warp of 8 lanes", [] {
    uint32_t r[4];
    if (threadIdx.x >= 32) ptx::ldmatrix_x4(r, ptx::dynamic_smem());
  });
  expect_error(how, "at barrier 0, with 63 threads of 64; threads 0-6 8-39", [] {
    if (threadIdx.x != 7) __syncthreads();
  });
}

template <int kCount>
int sum_of_cta(int value) {
  __shared__ int values[kCount], total;
  values[threadIdx.x] = value;
  __syncthreads();
  if (threadIdx.x == 0) {
    total = 0;
    for (int x : values) total += x;
  }
  __syncthreads();
  return total;
}

TEST(EmulatorLaunch, EveryCtaHasItsSharedVariables) {
  Launch how{.grid = 6, .block = 64, .resident = 3};
  for (how.seed = 0; how.seed < 8; ++how.seed) {
    std::vector<int> sums(6), again(6);
    emulator::launch(how, [&] {
      __shared__ int cta;
      if (threadIdx.x == 0) cta = static_cast<int>(blockIdx.x);
      __syncthreads();
      const int sum = sum_of_cta<64>(cta);
      const int twice = sum_of_cta<64>(2 * cta);
      if (threadIdx.x == 63) sums[blockIdx.x] = sum, again[blockIdx.x] = twice;
    });
    for (int i = 0; i < 6; ++i) EXPECT_EQ(sums[static_cast<size_t>(i)], 64 * i);
    for (int i = 0; i < 6; ++i) EXPECT_EQ(again[static_cast<size_t>(i)], 128 * i);
  }
}

TEST(EmulatorLaunch, SharedVariablesStartUndefined) {
  std::vector<uint32_t> seen(4);
  emulator::launch({.grid = 2, .block = 1}, [&] {
    __shared__ uint32_t value;
    seen[blockIdx.x] = value;
    value = 5;
    seen[2 + blockIdx.x] = value;
  });
  EXPECT_EQ(seen, (std::vector<uint32_t>{~0u, ~0u, 5, 5}));
}

// mbarriers and the destinations of copies may be __shared__ variables, also in another CTA.
TEST(EmulatorLaunch, CopiesToSharedVariables) {
  const std::vector<uint32_t> from{1, 2, 3, 4, 5, 6, 7, 8};
  Launch how{.grid = 4, .block = 64, .cluster = 2, .resident = 2};
  for (how.seed = 0; how.seed < 8; ++how.seed) {
    std::vector<uint32_t> got(8);
    emulator::launch(how, [&] {
      alignas(16) __shared__ uint32_t values[4];
      __shared__ uint32_t message;
      __shared__ ptx::Mbarrier full;
      if (threadIdx.x == 0) full.init(1);
      ptx::cluster_arrive_relaxed();
      ptx::cluster_wait();
      const uint32_t rank = ptx::cluster_ctarank();
      if (threadIdx.x == 32) {
        full.expect_tx(20);
        full.arrive();
        ptx::cp_async_bulk(ptx::smem_address(values), from.data() + 4 * rank, 16, full);
        ptx::st_async(&message, 1 - rank, 10 + rank, full);
      }
      full.wait(0);
      if (threadIdx.x == 1) got[blockIdx.x] = values[3], got[4 + blockIdx.x] = message;
      ptx::cluster_arrive_relaxed();
      ptx::cluster_wait();
    });
    EXPECT_EQ(got, (std::vector<uint32_t>{4, 8, 4, 8, 11, 10, 11, 10}));
  }
}

TEST(EmulatorLaunch, OrdinaryStoresNeedAProxyFenceBeforeABulkCopy) {
  const std::vector<uint32_t> from(4);
  const auto kernel = [&](bool fence) {
    return [&from, fence] {
      alignas(16) __shared__ uint32_t values[4];
      __shared__ ptx::Mbarrier full;
      if (threadIdx.x == 0) full.init(1);
      if (threadIdx.x < 4) values[threadIdx.x] = threadIdx.x;
      if (fence) ptx::fence_proxy_async();
      __syncthreads();
      if (threadIdx.x == 0) {
        full.expect_tx(16);
        full.arrive();
        ptx::cp_async_bulk(ptx::smem_address(values), from.data(), 16, full);
      }
      full.wait(0);
    };
  };
  emulator::launch({}, kernel(true));
  expect_error({}, "a bulk copy overwrites what thread", kernel(false));
}

}  // namespace
}  // namespace dsv4
