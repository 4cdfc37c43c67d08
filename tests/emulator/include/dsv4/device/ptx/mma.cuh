// dsv4/device/ptx/mma.cuh on the emulator.

#pragma once

#include "tests/emulator/instructions.h"

namespace dsv4::ptx {

inline void mma_m16n8k16_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulator::multiply(c, a, b0, b1, emulator::OperandType::kBf16);
}

}  // namespace dsv4::ptx
