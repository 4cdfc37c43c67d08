// Matrix products of one warp. Products are exact; those of one instruction are added up in double,
// then rounded to f32 with the accumulator.

#pragma once

#include <array>
#include <cstdint>

#include "tests/emulator/instructions.h"
#include "tests/emulator/machine.h"

namespace dsv4::emulator {

constexpr int kRows = 16, kMaxDepth = 32, kMaxColumns = 256;

// k of one instruction: 32 bytes.
constexpr int depth(OperandType type) {
  return type == OperandType::kE4M3 ? 32 : 16;
}
constexpr int value_bytes(OperandType type) {
  return type == OperandType::kE4M3 ? 1 : 2;
}

// Operands as numbers: a [16, depth], b [depth, columns].
struct Operands {
  double a[kRows][kMaxDepth];
  double b[kMaxDepth][kMaxColumns];
};

double value(const void* from, OperandType type);
// Fragments of mma.cuh and wgmma.cuh: four registers per lane.
void take_fragments(const std::array<const uint32_t*, kWarpLanes>& lanes, OperandType type,
                    Operands& to);
// d (+)= a b. d[4 n ..] of lane (g, j): columns 8 n + 2j, + 1 of rows g and g + 8.
void add_product(const Operands& of, OperandType type, int columns, bool accumulate,
                 const std::array<float*, kWarpLanes>& d);
void check_whole_warp(std::string_view op);

}  // namespace dsv4::emulator
