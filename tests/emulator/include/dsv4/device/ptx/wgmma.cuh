// dsv4/device/ptx/wgmma.cuh on the emulator.

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <type_traits>

#include "tests/emulator/instructions.h"

namespace dsv4::ptx {

inline void wgmma_fence() {
  emulator::wgmma_fence();
}
inline void wgmma_commit_group() {
  emulator::wgmma_commit();
}
template <int kGroups>
void wgmma_wait_group() {
  emulator::wgmma_wait(kGroups);
}
template <int kCount>
void wgmma_fence_operand(float (&)[kCount]) {
}
template <int kCount>
void wgmma_fence_operand(uint32_t (&)[kCount]) {
}

template <class T, int kN, int kTransposeB = 0>
struct Wgmma {
  static constexpr bool kE4M3 = std::is_same_v<T, __nv_fp8_e4m3>;
  static constexpr bool kBf16 = std::is_same_v<T, __nv_bfloat16>;
  static_assert(kE4M3 || kBf16 || std::is_same_v<T, __half>);
  static_assert(!kE4M3 || kTransposeB == 0, "e4m3 operands have k contiguous");
  static constexpr emulator::WgmmaShape kShape{
      .type = kE4M3 ? emulator::OperandType::kE4M3
                    : (kBf16 ? emulator::OperandType::kBf16 : emulator::OperandType::kF16),
      .n = kN,
      .transposed = kTransposeB != 0};

  static void run(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b, int accumulate) {
    emulator::wgmma(kShape, d, a, 0, b, accumulate != 0);
  }
  static void run(float (&d)[kN / 2], uint64_t a, uint64_t b, int accumulate) {
    emulator::wgmma(kShape, d, nullptr, a, b, accumulate != 0);
  }
};

}  // namespace dsv4::ptx
