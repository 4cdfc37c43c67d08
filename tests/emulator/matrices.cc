// Matrix instructions. Products are exact; 16 of them are added up in double, then rounded to f32
// with the accumulator.

#include <algorithm>
#include <cstring>

#include "dsv4/formats/float16.h"
#include "tests/emulator/instructions.h"
#include "tests/emulator/machine.h"

namespace dsv4::emulator {
namespace {

constexpr int kRows = 16, kDepth = 16, kMostColumns = 256;

struct MatrixRows {
  uint32_t* r;
  uint32_t row;
};

// Value (row, column) of matrix `which` in place `at` of a lane's registers.
uint16_t* element(std::string_view op, const std::array<MatrixRows*, kWarpLanes>& lanes, int which,
                  int row, int column) {
  const auto lane = static_cast<size_t>(8 * which + row);
  std::byte* from = machine().shared(op, *machine().self().block, lanes[lane]->row, 16, 16);
  return reinterpret_cast<uint16_t*>(from) + column;
}

double value(uint16_t bits, bool bf16) {
  return static_cast<double>(bf16 ? bf16_to_f32(bits) : f16_to_f32(bits));
}

// Operands of a product as numbers.
struct Operands {
  double a[kRows][kDepth];
  double b[kDepth][kMostColumns];
};

// Fragments of mma.cuh: lane (g, j) has rows g and g + 8 and of k 2j, 2j + 1, + 8.
void take_fragments(const std::array<const uint32_t*, kWarpLanes>& lanes, bool bf16, Operands& to) {
  for (size_t lane = 0; lane < kWarpLanes; ++lane) {
    for (size_t i = 0; i < 4; ++i) {
      const size_t row = lane / 4 + i % 2 * 8, k = lane % 4 * 2 + i / 2 * 8;
      to.a[row][k] = value(static_cast<uint16_t>(lanes[lane][i]), bf16);
      to.a[row][k + 1] = value(static_cast<uint16_t>(lanes[lane][i] >> 16), bf16);
    }
  }
}

// d[4 n ..]: columns 8 n + 2j, + 1 of rows g and g + 8.
void add_product(const Operands& of, int columns, bool accumulate,
                 const std::array<float*, kWarpLanes>& d) {
  double sums[kMostColumns];
  for (size_t row = 0; row < kRows; ++row) {
    std::fill_n(sums, columns, 0.);
    for (int k = 0; k < kDepth; ++k) {
      for (int n = 0; n < columns; ++n) sums[n] += of.a[row][k] * of.b[k][n];
    }
    for (int n = 0; n < columns; ++n) {
      const auto lane = row % 8 * 4 + static_cast<size_t>(n % 8 / 2);
      float& to = d[lane][n / 8 * 4 + static_cast<int>(row / 8) * 2 + n % 2];
      to = static_cast<float>((accumulate ? static_cast<double>(to) : 0.) + sums[n]);
    }
  }
}

// A tile that a descriptor names: eight values from (row, 8 piece), or of a transposed one from (k,
// 8 piece). Pieces of 16 bytes are swizzled by the address of their row.
struct Tile {
  Block& block;
  const Writes& fenced;
  uint32_t start, across, eight_rows;

  Tile(Block& in, const Writes& seen, uint64_t descriptor)
      : block(in),
        fenced(seen),
        start(static_cast<uint32_t>(descriptor & 0x3fff) << 4),
        across(static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4),
        eight_rows(static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4) {
    if (descriptor >> 46 != uint64_t{1} << (62 - 46))
      kernel_error("wgmma: descriptor {:#x} is not of a 128-byte swizzle", descriptor);
  }
  const uint16_t* piece(int row, int which) const {
    const uint32_t flat =
        start + static_cast<uint32_t>(row / 8) * eight_rows + static_cast<uint32_t>(row % 8) * 128 +
        static_cast<uint32_t>(which / 8) * across + static_cast<uint32_t>(which % 8) * 16;
    const uint32_t address = flat ^ (flat >> 7 & 7) << 4;
    const std::byte* at = machine().shared("wgmma", block, address, 16, 16);
    check_fenced("wgmma reads", block, address, fenced);
    return reinterpret_cast<const uint16_t*>(at);
  }
};

void take_b(Block& block, const Product& product, Operands& to) {
  const Tile tile(block, product.fenced, product.b_tile);
  for (int piece = 0; piece < (product.transposed ? product.n : kDepth) / 8; ++piece) {
    for (int row = 0; row < (product.transposed ? kDepth : product.n); ++row) {
      const uint16_t* from = tile.piece(row, piece);
      for (int i = 0; i < 8; ++i) {
        const double x = value(from[i], product.bf16);
        product.transposed ? to.b[row][8 * piece + i] = x : to.b[8 * piece + i][row] = x;
      }
    }
  }
}
void take_a(const Warp& warp, const Product& product, Operands& to) {
  if (product.a[0] != nullptr) {
    for (size_t lane = 0; lane < kWarpLanes; ++lane) {
      if (!std::equal(product.had[lane].begin(), product.had[lane].end(), product.a[lane]))
        kernel_error("wgmma: A registers of lane {} changed before it was waited for", lane);
    }
    return take_fragments(product.a, product.bf16, to);
  }
  const Tile tile(*warp.block, product.fenced, product.a_tile);
  for (int row = 0; row < kRows; ++row) {
    for (int k = 0; k < kDepth; ++k)
      to.a[row][k] =
          value(tile.piece(warp.index % kGroupWarps * kRows + row, k / 8)[k % 8], product.bf16);
  }
}

}  // namespace

void load_matrices(uint32_t* r, uint32_t row, bool transposed) {
  MatrixRows mine{r, row};
  const char* op = transposed ? "ldmatrix, transposed" : "ldmatrix";
  together(op, mine, [&](const auto& lanes) {
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      const int g = lane / 4, j = lane % 4;
      for (int which = 0; which < 4; ++which) {
        const uint32_t low = *(transposed ? element(op, lanes, which, 2 * j, g)
                                          : element(op, lanes, which, g, 2 * j));
        const uint32_t high = *(transposed ? element(op, lanes, which, 2 * j + 1, g)
                                           : element(op, lanes, which, g, 2 * j + 1));
        lanes[static_cast<size_t>(lane)]->r[which] = high << 16 | low;
      }
    }
  });
}

void store_matrices_transposed(const uint32_t* r, uint32_t row, int matrices) {
  MatrixRows mine{const_cast<uint32_t*>(r), row};
  const char* op = "stmatrix, transposed";
  together(op, mine, [&](const auto& lanes) {
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      const int g = lane / 4, j = lane % 4;
      for (int which = 0; which < matrices; ++which) {
        const uint32_t pair = lanes[static_cast<size_t>(lane)]->r[which];
        for (int i = 0; i < 2; ++i) {
          uint16_t* to = element(op, lanes, which, 2 * j + i, g);
          *to = static_cast<uint16_t>(pair >> 16 * i);
          Block& block = *machine().self().block;
          const int writer = machine().warp().index * kWarpLanes + lane;
          note_write(block.threads[static_cast<size_t>(writer)], reinterpret_cast<std::byte*>(to));
        }
      }
    }
  });
}

void multiply(float* c, const uint32_t* a, uint32_t b0, uint32_t b1) {
  struct Mine {
    float* c;
    const uint32_t* a;
    uint32_t b[2];
  } mine{c, a, {b0, b1}};
  together("mma", mine, [](const auto& lanes) {
    Operands of;
    std::array<const uint32_t*, kWarpLanes> fragments;
    std::array<float*, kWarpLanes> d;
    for (size_t lane = 0; lane < kWarpLanes; ++lane) {
      fragments[lane] = lanes[lane]->a, d[lane] = lanes[lane]->c;
      for (size_t i = 0; i < 4; ++i) {
        const auto bits = static_cast<uint16_t>(lanes[lane]->b[i / 2] >> 16 * (i % 2));
        of.b[lane % 4 * 2 + i % 2 + i / 2 * 8][lane / 4] = value(bits, true);
      }
    }
    take_fragments(fragments, true, of);
    add_product(of, 8, true, d);
  });
}

void wgmma(const WgmmaShape& shape, float* d, const uint32_t* a, uint64_t a_tile, uint64_t b_tile,
           bool accumulate) {
  struct Mine {
    ProductKind kind;
    float* d;
    const uint32_t* a;
  } mine{{shape.bf16, shape.transposed, accumulate, shape.n, a_tile, b_tile}, d, a};
  together("wgmma", mine, [](const auto& lanes) {
    Warp& warp = machine().warp();
    if (!warp.fenced) kernel_error("wgmma: no wgmma_fence since registers may have changed");
    Product product{lanes[0]->kind};
    for (size_t lane = 0; lane < kWarpLanes; ++lane) {
      if (lanes[lane]->kind != product) kernel_error("wgmma: lane {} asks for another", lane);
      product.d[lane] = lanes[lane]->d;
      product.a[lane] = lanes[lane]->a;
      if (product.a[lane] != nullptr) std::copy_n(product.a[lane], 4, product.had[lane].begin());
    }
    product.group = warp.group;
    product.fenced = fenced_for(warp);
    auto& issued = warp.block->issued[static_cast<size_t>(warp.index / kGroupWarps)];
    if (warp.issued == issued.size()) issued.push_back(product);
    if (issued[warp.issued++] != product)
      kernel_error("wgmma number {} is not that of the other warps", warp.issued);
    warp.products.push_back(product);
    machine().remember(warp);
  });
}

void perform_product(Warp& warp) {
  static Operands of;
  const Product& product = warp.products.front();
  take_a(warp, product, of);
  take_b(*warp.block, product, of);
  add_product(of, product.n, product.accumulate, product.d);
  warp.products.pop_front();
}

void wgmma_fence() {
  int mine = 0;
  together("wgmma.fence", mine, [](const auto&) { machine().warp().fenced = true; });
}
void wgmma_commit() {
  int mine = 0;
  together("wgmma.commit_group", mine, [](const auto&) { ++machine().warp().group; });
}
void wgmma_wait(int groups) {
  int mine = groups;
  together("wgmma.wait_group", mine, [&](const auto&) {
    Warp& warp = machine().warp();
    warp.fenced = false;
    while (!warp.products.empty() && warp.products.front().group < warp.group - groups)
      perform_product(warp);
  });
}

}  // namespace dsv4::emulator
