#include "tests/emulator/products.h"

#include <algorithm>
#include <cstring>

#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/float16.h"

namespace dsv4::emulator {

void check_whole_warp(std::string_view op) {
  const int size = machine().warp().size;
  if (size < kWarpLanes) kernel_error("{} in a warp of {} lanes", op, size);
}

double value(const void* from, OperandType type) {
  if (type == OperandType::kE4M3)
    return static_cast<double>(e4m3_to_f32(*static_cast<const uint8_t*>(from)));
  uint16_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return static_cast<double>(type == OperandType::kBf16 ? bf16_to_f32(bits) : f16_to_f32(bits));
}

// Lane (g, j) has rows g and g + 8 and, with c values in a register, of k: c j .. and, half of the
// depth later, the same again.
void take_fragments(const std::array<const uint32_t*, kWarpLanes>& lanes, OperandType type,
                    Operands& to) {
  const auto count = static_cast<size_t>(4 / value_bytes(type));
  const auto half = static_cast<size_t>(depth(type) / 2);
  for (size_t lane = 0; lane < kWarpLanes; ++lane) {
    for (size_t i = 0; i < 4; ++i) {
      const size_t row = lane / 4 + i % 2 * 8, k = lane % 4 * count + i / 2 * half;
      const auto* bytes = reinterpret_cast<const std::byte*>(lanes[lane] + i);
      for (size_t v = 0; v < count; ++v) to.a[row][k + v] = value(bytes + v * 4 / count, type);
    }
  }
}

void add_product(const Operands& of, OperandType type, int columns, bool accumulate,
                 const std::array<float*, kWarpLanes>& d) {
  double sums[kMaxColumns];
  for (size_t row = 0; row < kRows; ++row) {
    std::fill_n(sums, columns, 0.);
    for (int k = 0; k < depth(type); ++k) {
      for (int n = 0; n < columns; ++n) sums[n] += of.a[row][k] * of.b[k][n];
    }
    for (int n = 0; n < columns; ++n) {
      const auto lane = row % 8 * 4 + static_cast<size_t>(n % 8 / 2);
      float& to = d[lane][n / 8 * 4 + static_cast<int>(row / 8) * 2 + n % 2];
      to = static_cast<float>((accumulate ? static_cast<double>(to) : 0.) + sums[n]);
    }
  }
}

}  // namespace dsv4::emulator
