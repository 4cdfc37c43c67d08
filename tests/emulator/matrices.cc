// Instructions of one warp on matrices: ldmatrix, stmatrix, mma.

#include "tests/emulator/products.h"

namespace dsv4::emulator {
namespace {

struct MatrixRows {
  uint32_t* r;
  uint32_t row;
};

// The address of value (row, column) of matrix `which`.
uint32_t element(const std::array<MatrixRows*, kWarpLanes>& lanes, int which, int row, int column) {
  return lanes[static_cast<size_t>(8 * which + row)]->row + 2 * static_cast<uint32_t>(column);
}
uint16_t& value_at(std::string_view op, uint32_t address) {
  const uint32_t row = address / 16 * 16;
  return *reinterpret_cast<uint16_t*>(machine().shared(op, machine().cta(), row, 16, 16) +
                                      (address - row));
}

}  // namespace

void load_matrices(uint32_t* r, uint32_t row, bool transposed) {
  const Instruction instruction;
  MatrixRows mine{r, row};
  const char* op = transposed ? "ldmatrix, transposed" : "ldmatrix";
  check_whole_warp(op);
  together(op, mine, [&](const auto& lanes) {
    const auto load = [&](int which, int g, int k) {
      return uint32_t{
          value_at(op, transposed ? element(lanes, which, k, g) : element(lanes, which, g, k))};
    };
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      const int g = lane / 4, j = lane % 4;
      for (int which = 0; which < 4; ++which)
        lanes[static_cast<size_t>(lane)]->r[which] =
            load(which, g, 2 * j + 1) << 16 | load(which, g, 2 * j);
    }
  });
}

void store_matrices(const uint32_t* r, uint32_t row, int matrices, bool transposed) {
  const Instruction instruction;
  MatrixRows mine{const_cast<uint32_t*>(r), row};
  const char* op = transposed ? "stmatrix, transposed" : "stmatrix";
  check_whole_warp(op);
  together(op, mine, [&](const auto& lanes) {
    const auto first = static_cast<size_t>(machine().warp().index * kWarpLanes);
    for (size_t lane = 0; lane < kWarpLanes; ++lane) {
      const auto g = static_cast<int>(lane / 4), j = static_cast<int>(lane % 4);
      for (int which = 0; which < matrices; ++which) {
        for (int i = 0; i < 2; ++i) {
          const uint32_t address = transposed ? element(lanes, which, 2 * j + i, g)
                                              : element(lanes, which, g, 2 * j + i);
          value_at(op, address) = static_cast<uint16_t>(lanes[lane]->r[which] >> 16 * i);
          note_write(machine().cta().threads[first + lane], address % kSharedWindow);
        }
      }
    }
  });
}

void multiply(float* c, const uint32_t* a, uint32_t b0, uint32_t b1, OperandType type) {
  const Instruction instruction;
  check_whole_warp("mma");
  struct Mine {
    float* c;
    const uint32_t* a;
    uint32_t b[2];
  } mine{c, a, {b0, b1}};
  together("mma", mine, [type](const auto& lanes) {
    static Operands of;
    std::array<const uint32_t*, kWarpLanes> fragments;
    std::array<float*, kWarpLanes> d;
    for (size_t lane = 0; lane < kWarpLanes; ++lane) {
      fragments[lane] = lanes[lane]->a, d[lane] = lanes[lane]->c;
      for (size_t i = 0; i < 4; ++i) {
        const auto bits = static_cast<uint16_t>(lanes[lane]->b[i / 2] >> 16 * (i % 2));
        of.b[lane % 4 * 2 + i % 2 + i / 2 * 8][lane / 4] = value(&bits, type);
      }
    }
    take_fragments(fragments, type, of);
    add_product(of, type, 8, true, d);
  });
}

}  // namespace dsv4::emulator
