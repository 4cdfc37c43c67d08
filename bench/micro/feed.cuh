// Ways to bring rows of x' to the tiles of the grouped GEMM, with a live ring of codes (design 5.1,
// row 2, whose cp.async gather reached 9.5 of 15.8 weights a clock at N = 128).
//
//   kNone        barriers only: the bound of the loop itself
//   kGather      cp.async of 16 bytes by kGatherWarps warps, 8 lanes a row; random rows of x
//   kRowBulk     a bulk copy of 128 bytes a row; x is stored with the swizzle of phase token % 8,
//                so a token has to sit in a slot of its own phase (the row lists here obey that)
//   kRowTensor   a tensor copy of one row of 128 bytes; the copy swizzles by its address, so any
//                token may sit in any slot
//   kTileTensor  a sorted copy of x [pairs, columns]; one tensor copy of kN rows a stage
//   kTileBulk    a sorted copy in blocks [expert][128 bytes of columns][kN rows, swizzled]; one
//                plain bulk copy a stage
//
// Modes of the kernel: kFenced (cp.async: the consumer fences proxies), kPlain (the async proxy
// writes), kCluster (two CTAs with one expert; each brings half of the rows to both, tiles only).

#pragma once

#include <cuda.h>

#include "bench/micro/stream.cuh"
#include "dsv4/device/ptx/cluster.cuh"
#include "dsv4/device/ptx/tensor_copy.cuh"

namespace dsv4::micro {

enum Feed { kNone, kGather, kRowBulk, kRowTensor, kTileTensor, kTileBulk };
enum FeedMode { kFenced, kPlain, kCluster };

struct FeedParams {
  StreamParams stream;
  int feed, warps;                // warps that bring x: 1 to 7
  const unsigned char* swizzled;  // kRowBulk: x with the phase token % 8
  const unsigned char* blocked;   // kTileBulk
  CUtensorMap rows, tile;         // kRowTensor: boxes of one row; kTileTensor: of kN or kN / 2
};

// The scale of token column n and group g of four: a power of two, as the scales of Q8 are.
__host__ __device__ inline float token_factor(int g, int n) {
  return static_cast<float>(1 << (g * 7 + n) % 3);
}

// kParts_ = 0: no promotion, two m64 a warpgroup. 1, 2: e4m3 promoted every 128 columns, one m64 a
// warpgroup; with 2 the products of a group run while those of the group before it are added.
template <class D_, int kN_, int kParts_ = 0>
struct Fed : Stream<D_, kN_, 2, kParts_ == 0 ? 2 : 1> {
  static constexpr int kParts = kParts_;
  struct Shared : Stream<D_, kN_, 2, kParts_ == 0 ? 2 : 1>::Shared {
    float factors[4][kN_];
  };
};

__device__ inline void bulk_multicast(uint32_t to, const void* from, uint32_t bytes,
                                      ptx::Mbarrier& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(ptx::smem_address(&barrier)), "h"(static_cast<uint16_t>(3))
      : "memory");
}

template <class C, int kMode>
__device__ void prepare(const FeedParams& f, typename C::Shared& s) {
  for (int i = threadIdx.x; i < kTableWords; i += C::kThreads) s.table[i] = f.stream.table[i];
  for (int i = threadIdx.x; i < kWarpLanes; i += C::kThreads)
    s.own_table[i] = *reinterpret_cast<const uint4*>(f.stream.table);
  for (int i = threadIdx.x; i < 4 * C::kN; i += C::kThreads)
    s.factors[i / C::kN][i % C::kN] = token_factor(i / C::kN, i % C::kN);
  for (int i = threadIdx.x; i < C::kXStages * C::kN * 8; i += C::kThreads)
    reinterpret_cast<uint4*>(s.x)[i] = uint4{};
  if (threadIdx.x == 0) {
    const int full = f.feed == kGather ? 32 * f.warps : 1;
    for (ptx::Mbarrier& b : s.code_full) b.init(1);
    for (ptx::Mbarrier& b : s.code_empty) b.init(C::kGroups * 4);
    for (ptx::Mbarrier& b : s.x_full) b.init(static_cast<uint32_t>(full));
    for (ptx::Mbarrier& b : s.x_empty) b.init(C::kGroups * 4 * (kMode == kCluster ? 2 : 1));
    ptx::fence_mbarrier_init();
  }
  ptx::fence_proxy_async();
  if constexpr (kMode == kCluster) {
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }
  __syncthreads();
}

// cp.async by 32 `warps` threads: chunk thread % 8 of rows thread / 8 + 4 warps i.
template <class C>
__device__ void gather_rows(const FeedParams& f, typename C::Shared& s, int thread) {
  constexpr int kMine = (C::kN + 11) / 12;  // of three warps, the fewest
  const StreamParams& p = f.stream;
  const int cta = static_cast<int>(blockIdx.x), ctas = static_cast<int>(gridDim.x);
  const int chunk = thread % 8, first = thread / 8, stride = f.warps * 4;
  const uint32_t to = swizzled<C>(s, 0, first, chunk);  // stride is a multiple of 4, not of 8
  uint32_t from[kMine];
  for (int n = 0; n < p.units * C::kSteps; ++n) {
    const int stage = n % C::kXStages, u = n / C::kSteps;
    if (n % (C::kSteps * kUnitsPerItem) == 0) {
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        const int row = min(first + stride * i, C::kN - 1);
        from[i] = static_cast<uint32_t>(p.rows[expert_at(cta, ctas, u) * C::kN + row]) *
                      static_cast<uint32_t>(C::kRowBytes) +
                  static_cast<uint32_t>(chunk * 16);
      }
    }
    bounded_wait(s.x_empty[stage], (n / C::kXStages + 1) % 2);
    const unsigned char* x = p.x + n % (C::kSteps * kUnitsPerItem) * 128;
    const uint32_t there = to + static_cast<uint32_t>(stage * C::kN * 128);
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      if (first + stride * i < C::kN) {
        const uint32_t at = (there + static_cast<uint32_t>(i * stride * 128)) ^
                            static_cast<uint32_t>(i * stride % 8 * 16);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(x + from[i])
                     : "memory");
      }
    }
    s.x_full[stage].arrive_cp_async_noinc();
  }
}

// A copy of 128 bytes a row and lane; thread 0 announces the bytes of a stage.
template <class C>
__device__ void copy_rows(const FeedParams& f, typename C::Shared& s, int thread) {
  constexpr int kMine = (C::kN + 31) / 32;
  const StreamParams& p = f.stream;
  const int cta = static_cast<int>(blockIdx.x), ctas = static_cast<int>(gridDim.x);
  const int stride = f.warps * 32;
  int token[kMine];
  for (int n = 0; n < p.units * C::kSteps; ++n) {
    const int stage = n % C::kXStages, u = n / C::kSteps;
    const int step = n % (C::kSteps * kUnitsPerItem);
    if (step == 0) {
#pragma unroll
      for (int i = 0; i < kMine; ++i)
        token[i] = p.rows[expert_at(cta, ctas, u) * C::kN + min(thread + stride * i, C::kN - 1)];
    }
    bounded_wait(s.x_empty[stage], (n / C::kXStages + 1) % 2);
    if (thread == 0) {
      s.x_full[stage].expect_tx(C::kN * 128);
      s.x_full[stage].arrive();
    }
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int row = thread + stride * i;
      if (row >= C::kN) continue;
      const uint32_t to = ptx::smem_address(s.x[stage] + row * 128);
      if (f.feed == kRowTensor) {
        ptx::cp_async_bulk_tensor_2d(to, &f.rows, s.x_full[stage],
                                     step * 128 / static_cast<int>(sizeof(typename C::D::Type)),
                                     token[i]);
      } else {
        ptx::cp_async_bulk(to, f.swizzled + int64_t{token[i]} * C::kRowBytes + step * 128, 128,
                           s.x_full[stage]);
      }
    }
    __syncwarp();
  }
}

// One lane, a stage at a time.
template <class C, int kMode>
__device__ void copy_tiles(const FeedParams& f, typename C::Shared& s) {
  if (!elect_one()) return;
  const StreamParams& p = f.stream;
  constexpr bool kPair = kMode == kCluster;
  constexpr int kRows = kPair ? C::kN / 2 : C::kN;
  const int cta = static_cast<int>(blockIdx.x), ctas = static_cast<int>(gridDim.x);
  const int first = kPair ? static_cast<int>(ptx::cluster_ctarank()) * kRows : 0;
  for (int n = 0; n < p.units * C::kSteps; ++n) {
    const int stage = n % C::kXStages, u = n / C::kSteps;
    const int step = n % (C::kSteps * kUnitsPerItem), expert = expert_at(cta, ctas, u);
    ptx::Mbarrier& full = s.x_full[stage];
    bounded_wait(s.x_empty[stage], (n / C::kXStages + 1) % 2);
    if (f.feed != kNone) full.expect_tx(C::kN * 128);
    full.arrive();
    const uint32_t to = ptx::smem_address(s.x[stage] + first * 128);
    if (f.feed == kTileTensor) {
      const int column = step * 128 / static_cast<int>(sizeof(typename C::D::Type));
      if constexpr (kPair) {
        ptx::cp_async_bulk_tensor_2d_multicast(to, &f.tile, full, 3, column,
                                               expert * C::kN + first);
      } else {
        ptx::cp_async_bulk_tensor_2d(to, &f.tile, full, column, expert * C::kN);
      }
    } else if (f.feed == kTileBulk) {
      const unsigned char* from =
          f.blocked + ((int64_t{expert} * C::kSteps * kUnitsPerItem + step) * C::kN + first) * 128;
      if constexpr (kPair) {
        bulk_multicast(to, from, kRows * 128, full);
      } else {
        ptx::cp_async_bulk(to, from, kRows * 128, full);
      }
    }
  }
}

template <int kMode>
__device__ inline void release_x(ptx::Mbarrier& empty) {
  const uint32_t lane = threadIdx.x % kWarpLanes;
  if constexpr (kMode == kCluster) {
    if (lane < 2) empty.arrive_relaxed_cluster(lane);
  } else {
    if (lane == 0) empty.arrive();
  }
}

template <class C>
__device__ inline void store_sums(const StreamParams& p, int strip, const float* sums) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  float* const row = p.out + int64_t{blockIdx.x} * C::kRows * C::kN +
                     (strip * 16 + lane / 4) * C::kN + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < C::kN / 2; ++i) row[i % 4 / 2 * 8 * C::kN + i / 4 * 8 + i % 2] = sums[i];
}

__device__ inline int64_t clock_cycles() {
  int64_t t;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(t));
  return t;
}
struct Stopwatch {
  uint64_t ns = 0;
  int64_t cycles = 0;
  __device__ void begin() { ns = nanoseconds(), cycles = clock_cycles(); }
  __device__ void stop(const StreamParams& p, int threads) const {
    asm volatile("barrier.cta.sync 1, %0;" ::"r"(threads) : "memory");
    if (threadIdx.x == 0)
      p.spans[blockIdx.x] = {clock_cycles() - cycles, static_cast<int64_t>(nanoseconds() - ns)};
  }
};

// Two m64 a warpgroup, one accumulator over all columns.
template <class C, int kMode>
__device__ void multiply(const StreamParams& p, typename C::Shared& s, int group) {
  using D = typename C::D;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes % 4, strip = group * 8 + warp;
  const D d(s.own_table[threadIdx.x % kWarpLanes], s.table);
  const uint64_t x = ptx::make_smem_desc_128B(ptx::smem_address(s.x));
  float sums[2][C::kN / 2] = {};
  uint32_t a[2][4][4] = {};
  Unit<D> unit[2];
  Stopwatch watch;
  watch.begin();
#pragma unroll 1
  for (int u = 0; u < p.units; ++u) {
    const int stage = u % C::kCodeStages;
    bounded_wait(s.code_full[stage], u / C::kCodeStages % 2);
#pragma unroll
    for (int j = 0; j < C::kSteps; ++j) {
      const int n = u * C::kSteps + j, x_stage = n % C::kXStages;
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        unit[b].load(s.codes[stage] + (strip + 4 * b) * C::kUnitBytes, j);
        ptx::wgmma_wait_group<1>();
        if (b == 1 && n > 0) release_x<kMode>(s.x_empty[(n - 1) % C::kXStages]);
        unit[b].decode(d, j, a[b]);
        if (b == 0) {
          bounded_wait(s.x_full[x_stage], n / C::kXStages % 2);
          if constexpr (kMode == kFenced) ptx::fence_proxy_async();
        }
        ptx::wgmma_fence();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          ptx::Wgmma<typename D::Type, C::kN>::run(
              sums[b], a[b][i],
              ptx::advance_desc(x, static_cast<uint32_t>(x_stage * C::kN * 128 + i * 32)), 1);
        }
        ptx::wgmma_commit_group();
      }
    }
    __syncwarp();
    if (threadIdx.x % kWarpLanes == 0) s.code_empty[stage].arrive();
  }
  ptx::wgmma_wait_group<0>();
#pragma unroll
  for (int b = 0; b < 2; ++b) ptx::wgmma_fence_operand(sums[b]);
  watch.stop(p, C::kGroups * 128);
#pragma unroll
  for (int b = 0; b < 2; ++b) store_sums<C>(p, strip + 4 * b, sums[b]);
}

// sums += part * factor of the column.
template <int kN>
__device__ inline void promote(float (&part)[kN / 2], const float* factors, float* sums) {
  ptx::wgmma_fence_operand(part);
  const float* const mine = factors + threadIdx.x % 4 * 2;
#pragma unroll
  for (int n = 0; n < kN / 8; ++n) {
    const float2 two = *reinterpret_cast<const float2*>(mine + 8 * n);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sums[4 * n + i] = fmaf(part[4 * n + i], i % 2 == 0 ? two.x : two.y, sums[4 * n + i]);
  }
}

// One m64 a warpgroup, promotion every 128 columns. All products are done at the end of two units,
// because ptxas waits for each by itself when sums cross the loop's back edge.
template <class C, int kMode>
__device__ void multiply_promoted(const StreamParams& p, typename C::Shared& s, int group) {
  using D = typename C::D;
  static_assert(C::kSteps == 2 && C::kXStages == 4);
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes % 4, strip = group * 4 + warp;
  const D d(s.own_table[threadIdx.x % kWarpLanes], s.table);
  const uint64_t x = ptx::make_smem_desc_128B(ptx::smem_address(s.x));
  float sums[C::kN / 2] = {};
  Stopwatch watch;
  watch.begin();
#pragma unroll 1
  for (int u = 0; u < p.units; u += 2) {
    float part[C::kParts][C::kN / 2];
    uint32_t a[2][4][4];
    Unit<D> unit;
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      const int v = u + g / 2, stage = v % C::kCodeStages;
      if (g % 2 == 0) bounded_wait(s.code_full[stage], v / C::kCodeStages % 2);
      unit.load(s.codes[stage] + strip * C::kUnitBytes, g % 2);
      unit.decode(d, g % 2, a[g % 2]);
      if (g % 2 == 1) {
        __syncwarp();
        if (threadIdx.x % kWarpLanes == 0) s.code_empty[stage].arrive();
      }
      bounded_wait(s.x_full[g], u / 2 % 2);
      if constexpr (kMode == kFenced) ptx::fence_proxy_async();
      if (C::kParts == 1 && g > 0) {
        ptx::wgmma_wait_group<0>();
        release_x<kMode>(s.x_empty[g - 1]);
        promote<C::kN>(part[0], s.factors[g - 1], sums);
      }
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        ptx::Wgmma<typename D::Type, C::kN>::run(
            part[g % C::kParts], a[g % 2][i],
            ptx::advance_desc(x, static_cast<uint32_t>(g * C::kN * 128 + i * 32)), i != 0);
      }
      ptx::wgmma_commit_group();
      if (C::kParts == 2 && g > 0) {
        ptx::wgmma_wait_group<1>();
        release_x<kMode>(s.x_empty[g - 1]);
        promote<C::kN>(part[(g - 1) % C::kParts], s.factors[g - 1], sums);
      }
    }
    ptx::wgmma_wait_group<0>();
    release_x<kMode>(s.x_empty[3]);
    promote<C::kN>(part[3 % C::kParts], s.factors[3], sums);
  }
  watch.stop(p, C::kGroups * 128);
  store_sums<C>(p, strip, sums);
}

template <class C, int kMode>
__global__ void __launch_bounds__(C::kThreads, 1)
    feed_kernel(const __grid_constant__ FeedParams f) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& s = *reinterpret_cast<typename C::Shared*>(memory);
  prepare<C, kMode>(f, s);
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (group < C::kGroups) {
    ptx::setmaxnreg_inc<C::kConsumerRegisters>();
    if constexpr (C::kParts == 0) {
      multiply<C, kMode>(f.stream, s, group);
    } else {
      multiply_promoted<C, kMode>(f.stream, s, group);
    }
  } else {
    ptx::setmaxnreg_dec<C::kOtherRegisters>();
    const int thread = static_cast<int>(threadIdx.x) - C::kGroups * 128;
    const int warp = __shfl_sync(~0u, thread / kWarpLanes, 0);
    if (warp == 0) {
      copy_codes<C>(f.stream, s, 0);
    } else if (warp <= f.warps) {
      if constexpr (kMode == kFenced) {
        gather_rows<C>(f, s, thread - kWarpLanes);
      } else if (kMode == kPlain && (f.feed == kRowBulk || f.feed == kRowTensor)) {
        copy_rows<C>(f, s, thread - kWarpLanes);
      } else if (warp == 1) {
        copy_tiles<C, kMode>(f, s);
      }
    }
  }
  if constexpr (kMode == kCluster) {  // the other CTA may still write here
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }
}

}  // namespace dsv4::micro
