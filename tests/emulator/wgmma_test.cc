// wgmma on the emulator: products of every operand type, and the rules that it checks.

#include <cuda_fp8.h>
#include <gtest/gtest.h>

#include <vector>

#include "dsv4/base/rng.h"
#include "dsv4/device/ptx/cp_async.cuh"
#include "dsv4/device/ptx/fence.cuh"
#include "dsv4/device/ptx/ldmatrix.cuh"
#include "dsv4/device/ptx/mbarrier.cuh"
#include "dsv4/device/ptx/smem_desc.cuh"
#include "dsv4/device/ptx/wgmma.cuh"
#include "tests/emulator/expect_error.h"

namespace dsv4 {
namespace {

using emulator::expect_error;
using emulator::Launch;

constexpr uint32_t kBase = 1024, kTileBytes = 32 << 10;
constexpr int kM = 64;

// Small integers, which all operand types hold exactly.
std::vector<float> random_integers(int count, Rng& rng) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& x : values) x = static_cast<float>(rng.below(17) - 8);
  return values;
}

template <class T>
struct Operand {
  static constexpr int kDepth = 32 / sizeof(T), kChunk = 16 / sizeof(T), kRow = 128 / sizeof(T);

  // Value (row, column) of a tile of 128-byte rows with the 128-byte swizzle, 1024-byte aligned.
  static T& in_tile(unsigned char* tile, int row, int column) {
    const int at = kChunk * ((column / kChunk) ^ (row % 8)) + column % kChunk;
    return reinterpret_cast<T*>(tile)[kRow * row + at];
  }
};

template <class T, int kN, int kTransposed>
struct Case {
  static constexpr int kK = Operand<T>::kDepth;
  std::vector<float> a, b;  // [64, K], [K, n]

  explicit Case(uint64_t seed) {
    Rng rng(seed);
    a = random_integers(kM * kK, rng);
    b = random_integers(kK * kN, rng);
  }
  float a_value(int row, int k) const { return a[static_cast<size_t>(row * kK + k)]; }
  float b_value(int k, int n) const { return b[static_cast<size_t>(k * kN + n)]; }

  // One thread stores a and b as tiles; all threads fill their fragments of a.
  void fill(uint32_t (&fragments)[4]) const {
    unsigned char* tile = ptx::dynamic_smem();
    for (int k = 0; k < kK && threadIdx.x == 0; ++k) {
      for (int n = 0; n < kN; ++n) {
        unsigned char* of_n = tile + (kTransposed ? n / 64 * 2048 : 0);
        Operand<T>::in_tile(of_n, kTransposed ? k : n, kTransposed ? n % 64 : k) = T(b_value(k, n));
      }
      for (int row = 0; row < kM; ++row)
        Operand<T>::in_tile(tile + kTileBytes, row, k) = T(a_value(row, k));
    }
    constexpr int kCount = 4 / sizeof(T);
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    for (int i = 0; i < 4; ++i) {
      const int row = 16 * warp + lane / 4 + 8 * (i % 2);
      const int k = kCount * (lane % 4) + kK / 2 * (i / 2);
      T values[kCount];
      for (int v = 0; v < kCount; ++v) values[v] = T(a_value(row, k + v));
      std::memcpy(&fragments[i], values, 4);
    }
    ptx::fence_proxy_async();
    __syncthreads();
  }

  float want(int row, int n) const {  // 1 + twice the product
    float sum = 1;
    for (int k = 0; k < kK; ++k) sum += 2 * a_value(row, k) * b_value(k, n);
    return sum;
  }
};

template <class T, int kN, int kTransposed = 0>
void check_product(uint64_t seed) {
  const Case<T, kN, kTransposed> test(seed + kN);
  for (const bool registers : {false, true}) {
    std::vector<float> got(kM * kN), early(128);
    emulator::launch({.block = 128, .shared = kTileBytes + (8 << 10), .seed = seed}, [&] {
      uint32_t a[4];
      test.fill(a);
      using Product = ptx::Wgmma<T, kN, kTransposed>;
      const uint64_t b_tile = ptx::make_smem_desc_128B(kBase, 2048);
      float d[kN / 2];
      for (float& x : d) x = 1.f;
      for (int i = 0; i < 2; ++i) {
        ptx::wgmma_fence();
        registers ? Product::run(d, a, b_tile, 1)
                  : Product::run(d, ptx::make_smem_desc_128B(kBase + kTileBytes), b_tile, 1);
        ptx::wgmma_commit_group();
      }
      early[threadIdx.x] = d[0];
      ptx::wgmma_wait_group<0>();
      const int lane = static_cast<int>(threadIdx.x) % 32;
      const int row = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
      for (int i = 0; i < kN / 2; ++i)
        got[static_cast<size_t>((row + i / 2 % 2 * 8) * kN + i / 4 * 8 + lane % 4 * 2 + i % 2)] =
            d[i];
    });
    // Seed 0: asynchronous operations complete at the last moment.
    if (seed == 0) {
      EXPECT_EQ(early, std::vector<float>(128, 1.f));
    }
    for (int i = 0; i < kM * kN; ++i)
      ASSERT_EQ(got[static_cast<size_t>(i)], test.want(i / kN, i % kN)) << i / kN << ' ' << i % kN;
  }
}

TEST(EmulatorWgmma, ProductsOfEveryOperandType) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    check_product<__nv_bfloat16, 8>(seed);
    check_product<__nv_bfloat16, 32>(seed);
    check_product<__nv_bfloat16, 64, 1>(seed);
    check_product<__nv_bfloat16, 128, 1>(seed);
    check_product<__half, 16>(seed);
    check_product<__half, 256>(seed);
    check_product<__nv_fp8_e4m3, 8>(seed);
    check_product<__nv_fp8_e4m3, 128>(seed);
  }
}

const Case<__nv_bfloat16, 8, 0> kSmall(1);
const Launch kSmallLaunch{.block = 128, .shared = kTileBytes + (8 << 10)};

// A product of kSmall, with change(a) before it is issued (false: it is not) and before the wait.
template <class Change>
auto product_with(const Change& change) {
  return [change] {
    uint32_t a[4];
    kSmall.fill(a);
    float d[4] = {};
    ptx::wgmma_fence();
    if (!change(a)) return;
    ptx::Wgmma<__nv_bfloat16, 8>::run(d, a, ptx::make_smem_desc_128B(kBase), 1);
    ptx::wgmma_commit_group();
    change(a);
    ptx::wgmma_wait_group<0>();
  };
}

TEST(EmulatorWgmma, RuleViolations) {
  expect_error(kSmallLaunch, "executed 0 wgmma of 1",
               product_with([](auto&) { return threadIdx.x < 96; }));
  expect_error(kSmallLaunch, "without fence_proxy_async", product_with([](auto&) {
                 ptx::stmatrix_x2_trans(kBase + 128 * (threadIdx.x % 8), 0, 0);
                 return true;
               }));
  expect_error(kSmallLaunch, "without fence_proxy_async", product_with([](auto&) {
                 if (threadIdx.x == 5) ptx::dynamic_smem()[0] = 1;
                 __syncthreads();
                 return true;
               }));
  expect_error(kSmallLaunch, "no wgmma_fence", product_with([](auto&) {
                 ptx::wgmma_wait_group<0>();
                 return true;
               }));
  EXPECT_THROW(emulator::launch(kSmallLaunch, product_with([](auto& a) { return ++a[1] != 0; })),
               Error);
}

enum class Fence { kBeforeTheCopyIsSeen, kInAThreadBetween, kInTheReader };

// b arrives by cp.async; thread 77 waits for it and releases the other threads.
auto product_of_copy(const std::vector<uint32_t>& b, Fence fence) {
  return [=, &b] {
    uint32_t a[4];
    kSmall.fill(a);
    auto* barriers = reinterpret_cast<ptx::Mbarrier*>(ptx::dynamic_smem() + 2048);
    const bool copies = threadIdx.x == 0, between = threadIdx.x == 77;
    if (copies) barriers[0].init(1), barriers[1].init(1);
    __syncthreads();
    if (copies) ptx::cp_async_zfill(kBase, b.data(), true), barriers[0].arrive_cp_async_noinc();
    if (fence == Fence::kBeforeTheCopyIsSeen) ptx::fence_proxy_async();
    if (between) {
      barriers[0].wait(0);
      if (fence == Fence::kInAThreadBetween) ptx::fence_proxy_async();
      barriers[1].arrive();
    }
    barriers[1].wait(0);
    if (fence == Fence::kInTheReader) ptx::fence_proxy_async();
    float d[4] = {};
    ptx::wgmma_fence();
    ptx::Wgmma<__nv_bfloat16, 8>::run(d, a, ptx::make_smem_desc_128B(kBase), 1);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
  };
}

TEST(EmulatorWgmma, TheProxyFenceMayBeInAnyThreadBetweenWriteAndProduct) {
  const std::vector<uint32_t> b(4);
  Launch how = kSmallLaunch;
  for (how.seed = 0; how.seed < 8; ++how.seed) {
    for (const Fence fence : {Fence::kInAThreadBetween, Fence::kInTheReader})
      EXPECT_NO_THROW(emulator::launch(how, product_of_copy(b, fence)));
  }
  expect_error(how, "without fence_proxy_async", product_of_copy(b, Fence::kBeforeTheCopyIsSeen));
}

}  // namespace
}  // namespace dsv4
