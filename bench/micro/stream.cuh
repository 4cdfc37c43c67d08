// The main loop of the grouped GEMM of docs section 2.2 without its epilogue: out [256 rows, kN] of
// a CTA = sum over units of 256 columns of W x^T, weights decoded from an image's bytes in shared
// memory to registers (RS wgmma), no promotion.
//
//   consumers   kGroups warpgroups x kBlocks m64. With one block, A has two sets by step
//   producers   kRing: one or two lanes issue the bulk copies of codes, 96 threads gather rows of x
//               by cp.async. Not kRing: shared memory is filled once, no barrier in the loop
//   kWork       kAll; kProducts: constant A; kDecode: decoded registers are combined by xor
//
// Not in it: epilogue, SwiGLU, tickets, items of unequal size.

#pragma once

#include "bench/micro/decode.cuh"
#include "bench/micro/micro.h"
#include "dsv4/device/ptx/bulk_copy.cuh"
#include "dsv4/device/ptx/cp_async.cuh"
#include "dsv4/device/ptx/fence.cuh"
#include "dsv4/device/ptx/setmaxnreg.cuh"
#include "dsv4/device/ptx/smem_desc.cuh"
#include "dsv4/device/ptx/wgmma.cuh"

namespace dsv4::micro {

inline constexpr int kColumns = 4096, kUnitsPerItem = kColumns / 256, kItemsPerExpert = 16;
inline constexpr int kTokens = 4096, kExperts = 132;
enum Work { kAll, kProducts, kDecode };

struct StreamParams {
  const unsigned char* codes;  // [items, strips, 16 units]
  const unsigned char* x;      // [kTokens, kColumns] f16 or e4m3, in the order of column_at()
  const int* rows;             // [kExperts, kN] tokens
  const uint32_t* table;       // [kTableWords]
  int pool;                    // items in `codes`
  int units;                   // of 256 columns that each CTA multiplies
  int lanes;                   // that issue bulk copies: 1 or 2
  bool copy_codes, copy_x;     // kRing: false keeps the bytes of the start and only the barriers
  float* out;                  // [CTAs, kRows, kN]
  Span* spans;                 // [CTAs]
};

template <class D_, int kN_, int kGroups_ = 2, int kBlocks_ = 2>
struct Stream {
  using D = D_;
  static constexpr int kN = kN_, kGroups = kGroups_, kBlocks = kBlocks_;
  static constexpr int kStrips = kGroups * kBlocks * 4, kRows = kStrips * 16;
  static constexpr int kUnitBytes = 512 * D::kBits + 128;
  static constexpr int kSteps = 256 / D::kStepColumns, kCodeStages = 3, kXStages = 4;
  static constexpr int kExtra = kGroups == 2 ? 2 : 1;  // warpgroups that do not multiply
  static constexpr int kThreads = (kGroups + kExtra) * 128;
  static constexpr int kConsumerRegisters = kGroups == 2 ? 208 : kGroups == 3 ? 152 : 112;
  static constexpr int kOtherRegisters = kGroups == 2 ? 48 : kGroups == 3 ? 56 : 32;
  static constexpr int kRowBytes = kColumns * static_cast<int>(sizeof(typename D::Type));

  struct Shared {
    unsigned char x[kXStages][kN * 128];  // [kN] rows of 128 bytes, swizzled
    unsigned char codes[kCodeStages][kStrips * kUnitBytes];
    uint32_t table[kTableWords];
    uint4 own_table[kWarpLanes];
    ptx::Mbarrier code_full[kCodeStages], code_empty[kCodeStages], x_full[kXStages],
        x_empty[kXStages];
  };
};

// Where CTA `cta` reads the codes of its unit u, and whose rows.
template <class C>
__host__ __device__ inline int64_t unit_at(const StreamParams& p, int cta, int ctas, int u) {
  const int64_t item = (cta + int64_t{u / kUnitsPerItem} * ctas) % p.pool;
  return (item * C::kStrips * kUnitsPerItem + u % kUnitsPerItem) * C::kUnitBytes;
}
__host__ __device__ inline int expert_at(int cta, int ctas, int u) {
  return (cta + u / kUnitsPerItem * ctas) / kItemsPerExpert % kExperts;
}

template <class C>
__device__ inline uint32_t swizzled(const typename C::Shared& s, int stage, int row, int chunk) {
  return ptx::smem_address(s.x[stage]) + static_cast<uint32_t>(row * 128 + (chunk ^ row % 8) * 16);
}

// All threads: the first three units and the first four steps of x.
template <class C>
__device__ void fill(const StreamParams& p, typename C::Shared& s) {
  const int cta = static_cast<int>(blockIdx.x), ctas = static_cast<int>(gridDim.x);
  for (int i = threadIdx.x; i < kTableWords; i += C::kThreads) s.table[i] = p.table[i];
  for (int i = threadIdx.x; i < kWarpLanes; i += C::kThreads)
    s.own_table[i] = *reinterpret_cast<const uint4*>(p.table);
  for (int stage = 0; stage < C::kCodeStages; ++stage) {
    const unsigned char* from = p.codes + unit_at<C>(p, cta, ctas, stage);
    for (int i = threadIdx.x; i < C::kStrips * C::kUnitBytes / 16; i += C::kThreads) {
      const int strip = i * 16 / C::kUnitBytes, byte = i * 16 % C::kUnitBytes;
      *reinterpret_cast<uint4*>(s.codes[stage] + i * 16) = *reinterpret_cast<const uint4*>(
          from + int64_t{strip} * kUnitsPerItem * C::kUnitBytes + byte);
    }
  }
  for (int i = threadIdx.x; i < C::kXStages * C::kN * 8; i += C::kThreads) {
    const int chunk = i % 8, row = i / 8 % C::kN, stage = i / 8 / C::kN;
    const int64_t token = p.rows[expert_at(cta, ctas, 0) * C::kN + row];
    *reinterpret_cast<uint4*>(s.x[stage] + row * 128 + (chunk ^ row % 8) * 16) =
        *reinterpret_cast<const uint4*>(p.x + token * C::kRowBytes + stage * 128 + chunk * 16);
  }
  if (threadIdx.x == 0) {
    for (ptx::Mbarrier& b : s.code_full) b.init(static_cast<uint32_t>(p.lanes));
    for (ptx::Mbarrier& b : s.code_empty) b.init(C::kGroups * 4);
    for (ptx::Mbarrier& b : s.x_full) b.init(96);
    for (ptx::Mbarrier& b : s.x_empty) b.init(C::kGroups * 4);
    ptx::fence_mbarrier_init();
  }
  ptx::fence_proxy_async();
  __syncthreads();
}

// One warp: strips first, first + lanes, ...
template <class C>
__device__ void copy_codes(const StreamParams& p, typename C::Shared& s, int first) {
  if (!elect_one()) return;
  const int cta = static_cast<int>(blockIdx.x), ctas = static_cast<int>(gridDim.x);
  for (int u = 0; u < p.units; ++u) {
    const int stage = u % C::kCodeStages;
    bounded_wait(s.code_empty[stage], (u / C::kCodeStages + 1) % 2);
    if (p.copy_codes) {
      const unsigned char* from = p.codes + unit_at<C>(p, cta, ctas, u);
      s.code_full[stage].expect_tx(static_cast<uint32_t>(C::kStrips / p.lanes * C::kUnitBytes));
      for (int strip = first; strip < C::kStrips; strip += p.lanes) {
        ptx::cp_async_bulk_evict_first(ptx::smem_address(s.codes[stage] + strip * C::kUnitBytes),
                                       from + int64_t{strip} * kUnitsPerItem * C::kUnitBytes,
                                       C::kUnitBytes, s.code_full[stage]);
      }
    }
    s.code_full[stage].arrive();
  }
}

// 96 threads, of which `thread` is one: chunk thread % 8 of rows thread / 8 + 12 i.
template <class C>
__device__ void gather(const StreamParams& p, typename C::Shared& s, int thread) {
  constexpr int kMine = (C::kN + 11) / 12;
  const int cta = static_cast<int>(blockIdx.x), ctas = static_cast<int>(gridDim.x);
  const int chunk = thread % 8, first = thread / 8;
  uint32_t from[kMine];
  for (int n = 0; n < p.units * C::kSteps; ++n) {
    const int stage = n % C::kXStages, u = n / C::kSteps;
    if (n % (C::kSteps * kUnitsPerItem) == 0) {
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        const int row = min(first + 12 * i, C::kN - 1);
        from[i] = static_cast<uint32_t>(p.rows[expert_at(cta, ctas, u) * C::kN + row]) *
                      static_cast<uint32_t>(C::kRowBytes) +
                  static_cast<uint32_t>(chunk * 16);
      }
    }
    bounded_wait(s.x_empty[stage], (n / C::kXStages + 1) % 2);
    if (p.copy_x) {
      const unsigned char* x = p.x + n % (C::kSteps * kUnitsPerItem) * 128;
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        const int row = first + 12 * i;
        if (row < C::kN) {
          asm volatile(
              "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(swizzled<C>(s, stage, row, chunk)),
              "l"(x + from[i])
              : "memory");
        }
      }
      s.x_full[stage].arrive_cp_async_noinc();
    } else {
      s.x_full[stage].arrive();
    }
  }
}

// The words and scales of a block of 16 rows, loaded when a step first needs them.
template <class D>
struct Unit {
  uint32_t words[4 * D::kBits], scales[D::kScaleWords];

  // unit: of this warp
  __device__ void load(const unsigned char* unit, int step) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
    const auto* codes = reinterpret_cast<const uint4*>(unit) + lane;
#pragma unroll
    for (int v = 0; v < D::kBits; ++v) {
      if (4 * v / D::kStepWords != step) continue;
      const uint4 four = codes[v * kWarpLanes];
      words[4 * v] = four.x, words[4 * v + 1] = four.y;
      words[4 * v + 2] = four.z, words[4 * v + 3] = four.w;
    }
    const auto* of_row = reinterpret_cast<const uint32_t*>(unit + 512 * D::kBits + lane / 4 * 16);
#pragma unroll
    for (int i = 0; i < D::kScaleWords; ++i) scales[i] = of_row[step * D::kScaleWords + i];
  }
  __device__ void decode(const D& d, int step, uint32_t (&a)[4][4]) const {
    d.decode(words + step * D::kStepWords, scales, a);
  }
};

template <class C, bool kRing, int kWork>
__device__ void consume(const StreamParams& p, typename C::Shared& s, int group) {
  using D = typename C::D;
  const int warp = static_cast<int>(threadIdx.x) / kWarpLanes % 4;
  const bool signals = threadIdx.x % kWarpLanes == 0;
  const D d(s.own_table[threadIdx.x % kWarpLanes], s.table);
  const uint64_t x = ptx::make_smem_desc_128B(ptx::smem_address(s.x));
  float sums[C::kBlocks][C::kN / 2] = {};
  uint32_t a[2][4][4] = {};
  uint32_t mixed = 0;
  Unit<D> unit[C::kBlocks];
  const int strip = group * C::kBlocks * 4 + warp;
  if constexpr (kWork == kProducts) {
    unit[0].load(s.codes[0] + strip * C::kUnitBytes, 0);
    unit[0].decode(d, 0, a[0]);
    unit[0].decode(d, 0, a[1]);
  }
  const uint64_t begin_ns = nanoseconds();
  const int64_t begin = clock64();
#pragma unroll 1
  for (int u = 0; u < p.units; ++u) {
    const int stage = u % C::kCodeStages;
    if constexpr (kRing) bounded_wait(s.code_full[stage], u / C::kCodeStages % 2);
#pragma unroll
    for (int j = 0; j < C::kSteps; ++j) {
      const int n = u * C::kSteps + j, x_stage = n % C::kXStages;
      if constexpr (kRing) {
        bounded_wait(s.x_full[x_stage], n / C::kXStages % 2);
        ptx::fence_proxy_async();
      } else if constexpr (C::kN == 128 && kWork == kAll) {
        // Passes at once, and keeps ptxas from loading so early that registers do not suffice.
        bounded_wait(s.x_empty[x_stage], 1);
      }
#pragma unroll
      for (int b = 0; b < C::kBlocks; ++b) {
        uint32_t(&mine)[4][4] = a[C::kBlocks == 2 ? b : j % 2];
        if constexpr (kWork != kProducts)
          unit[b].load(s.codes[stage] + (strip + 4 * b) * C::kUnitBytes, j);
        if constexpr (kWork != kDecode) ptx::wgmma_wait_group<1>();
        constexpr int kLag = C::kBlocks == 2 ? 1 : 2;  // steps whose products are certainly done
        if (kRing && b == C::kBlocks - 1 && n >= kLag && signals)
          s.x_empty[(n - kLag) % C::kXStages].arrive();
        if constexpr (kWork != kProducts) unit[b].decode(d, j, mine);
        if constexpr (kWork == kDecode) {
#pragma unroll
          for (int i = 0; i < 4; ++i) mixed ^= mine[i][0] ^ mine[i][1] ^ mine[i][2] ^ mine[i][3];
        } else {
          ptx::wgmma_fence();
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            ptx::Wgmma<typename D::Type, C::kN>::run(
                sums[b], mine[i],
                ptx::advance_desc(x, static_cast<uint32_t>(x_stage * C::kN * 128 + i * 32)), 1);
          }
          ptx::wgmma_commit_group();
        }
      }
    }
    if constexpr (kRing) {
      __syncwarp();
      if (signals) s.code_empty[stage].arrive();
    }
  }
  ptx::wgmma_wait_group<0>();
#pragma unroll
  for (int b = 0; b < C::kBlocks; ++b) ptx::wgmma_fence_operand(sums[b]);
  asm volatile("barrier.cta.sync 1, %0;" ::"n"(C::kGroups * 128) : "memory");
  if (threadIdx.x == 0)
    p.spans[blockIdx.x] = {clock64() - begin, static_cast<int64_t>(nanoseconds() - begin_ns)};
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  float* const out = p.out + int64_t{blockIdx.x} * C::kRows * C::kN;
#pragma unroll
  for (int b = 0; b < C::kBlocks; ++b) {
    float* const row = out + ((strip + 4 * b) * 16 + lane / 4) * C::kN + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < C::kN / 2; ++i)
      row[i % 4 / 2 * 8 * C::kN + i / 4 * 8 + i % 2] =
          kWork == kDecode ? __uint_as_float(mixed & 0x3fffffffu) : sums[b][i];
  }
}

template <class C, bool kRing, int kWork>
__global__ void __launch_bounds__(C::kThreads, 1)
    stream_kernel(const __grid_constant__ StreamParams p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& s = *reinterpret_cast<typename C::Shared*>(memory);
  fill<C>(p, s);
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (group < C::kGroups) {
    ptx::setmaxnreg_inc<C::kConsumerRegisters>();
    consume<C, kRing, kWork>(p, s, group);
  } else {
    ptx::setmaxnreg_dec<C::kOtherRegisters>();
    if constexpr (kRing) {
      const int thread = static_cast<int>(threadIdx.x) - C::kGroups * 128;
      const int warp = __shfl_sync(~0u, thread / kWarpLanes, 0);
      if (warp == 0) copy_codes<C>(p, s, 0);
      if (warp == 4 && p.lanes == 2) copy_codes<C>(p, s, 1);
      if (warp >= 1 && warp <= 3) gather<C>(p, s, thread - kWarpLanes);
    }
  }
}

}  // namespace dsv4::micro
