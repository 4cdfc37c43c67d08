// Sizes, parameters and shared memory of the kernels in this folder.

#pragma once

#include <cstdint>

#include "dsv4/ops/gemm/sm90/experts/work.cuh"
#include "dsv4/ops/gemm/weights/kbit_image_f16.cuh"

namespace dsv4::experts_kernel::sm90_few {

using namespace gemm::experts;
using gemm::KbitTable, gemm::kUnitColumns, gemm::kUnitRows, gemm::TwoCodeTable;

inline constexpr int kEpilogueWarps = 3;
inline constexpr int kProducerWarp = kMathWarps + kEpilogueWarps;
inline constexpr int kThreads = (kProducerWarp + 1) * kWarp;
inline constexpr int kBuffers = kEpilogueWarps;  // of partial sums, one for each epilogue warp
static_assert(16 * kMathRegisters + 4 * kOtherRegisters == 20 * 96);

template <int K>
struct Shared {
  static constexpr int kStageBytes = kMathWarps * kUnitBytes<K>;
  static constexpr int kStages = (sm90::kMaxSmem - kBuffers * static_cast<int>(sizeof(Partials)) -
                                  static_cast<int>(sizeof(TwoCodeTable<K>)) - 1024) /
                                 kStageBytes;

  unsigned char stages[kStages][kStageBytes];
  TwoCodeTable<K> two_codes;
  Partials partials[kBuffers];
  // full: the bytes of a stage have landed; empty: all math warps have read it
  ptx::Mbarrier full[kStages], empty[kStages];
  // The epilogue warp has read the partial sums. (That all math warps have stored them is a named
  // barrier, filled_barrier().)
  ptx::Mbarrier drained[kBuffers];
};

// What these kernels take: a unit of the image for each math warp.
inline constexpr Reader kReader{gemm::make_f16_table,
                                [](int chunks) { return kMathWarps / chunks; }};

// The named barrier of a buffer: math warps arrive, its epilogue warp waits.
__device__ inline int filled_barrier(int buffer) {
  return 1 + buffer;
}
inline constexpr int kFilledThreads = (kMathWarps + 1) * kWarp;

}  // namespace dsv4::experts_kernel::sm90_few
