// wgmma: products of a warpgroup, each warp by itself, some time after they are issued.

#include <algorithm>

#include "tests/emulator/products.h"

namespace dsv4::emulator {
namespace {

// A tile that a descriptor names: chunks of 16 bytes from (row, k), or of a transposed tile from
// (k, column). Chunks are swizzled by the address of their row, or lie as smem_desc.cuh says of
// cells.
struct Tile {
  Cta& cta;
  const Writes& fenced;
  uint32_t start, across, eight_rows;
  bool cells;

  Tile(Cta& in, const Writes& seen, uint64_t descriptor)
      : cta(in),
        fenced(seen),
        start(static_cast<uint32_t>(descriptor & 0x3fff) << 4),
        across(static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4),
        eight_rows(static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4),
        cells(descriptor >> 46 == 0) {
    if (!cells && descriptor >> 46 != uint64_t{1} << (62 - 46))
      kernel_error("wgmma: descriptor {:#x} is neither of a 128-byte swizzle nor of cells",
                   descriptor);
  }
  const std::byte* chunk(int row, int which) const {
    if (cells) {
      const uint32_t address = start + static_cast<uint32_t>(row / 8) * eight_rows +
                               static_cast<uint32_t>(row % 8) * 16 +
                               static_cast<uint32_t>(which) * across;
      const std::byte* at = machine().shared("wgmma", cta, address, 16, 16);
      check_fenced("wgmma reads", cta, address, fenced);
      return at;
    }
    const uint32_t flat =
        start + static_cast<uint32_t>(row / 8) * eight_rows + static_cast<uint32_t>(row % 8) * 128 +
        static_cast<uint32_t>(which / 8) * across + static_cast<uint32_t>(which % 8) * 16;
    const uint32_t address = flat ^ (flat >> 7 & 7) << 4;
    const std::byte* at = machine().shared("wgmma", cta, address, 16, 16);
    check_fenced("wgmma reads", cta, address, fenced);
    return at;
  }
};

void take_b(Cta& cta, const Product& product, Operands& to) {
  const Tile tile(cta, product.fenced, product.b_tile);
  const int size = value_bytes(product.type), values = 16 / size, k = depth(product.type);
  const int chunks = (product.transposed ? product.n : k) / values;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    for (int row = 0; row < (product.transposed ? k : product.n); ++row) {
      const std::byte* from = tile.chunk(row, chunk);
      for (int i = 0; i < values; ++i) {
        const double x = value(from + i * size, product.type);
        const int column = values * chunk + i;
        product.transposed ? to.b[row][column] = x : to.b[column][row] = x;
      }
    }
  }
}

void take_a(const Warp& warp, const Product& product, Operands& to) {
  if (product.a[0] != nullptr) {
    for (size_t lane = 0; lane < kWarpLanes; ++lane) {
      if (!std::equal(product.had[lane].begin(), product.had[lane].end(), product.a[lane]))
        kernel_error("wgmma: A registers of lane {} changed before wgmma.wait_group", lane);
    }
    return take_fragments(product.a, product.type, to);
  }
  const Tile tile(*warp.cta, product.fenced, product.a_tile);
  const int size = value_bytes(product.type), values = 16 / size;
  for (int row = 0; row < kRows; ++row) {
    for (int k = 0; k < depth(product.type); ++k) {
      const std::byte* from = tile.chunk(warp.index % kGroupWarps * kRows + row, k / values);
      to.a[row][k] = value(from + k % values * size, product.type);
    }
  }
}

}  // namespace

void wgmma(const WgmmaShape& shape, float* d, const uint32_t* a, uint64_t a_tile, uint64_t b_tile,
           bool accumulate) {
  const Instruction instruction;
  check_whole_warp("wgmma");
  struct Mine {
    ProductKind kind;
    float* d;
    const uint32_t* a;
  } mine{{shape.type, shape.transposed, accumulate, shape.n, a_tile, b_tile}, d, a};
  together("wgmma", mine, [](const auto& lanes) {
    Warp& warp = machine().warp();
    if (!warp.fenced) kernel_error("wgmma: no wgmma_fence since registers may have changed");
    Product product{lanes[0]->kind};
    for (size_t lane = 0; lane < kWarpLanes; ++lane) {
      if (lanes[lane]->kind != product) kernel_error("wgmma: lane {} has other operands", lane);
      product.d[lane] = lanes[lane]->d;
      product.a[lane] = lanes[lane]->a;
      if (product.a[lane] != nullptr) std::copy_n(product.a[lane], 4, product.had[lane].begin());
    }
    product.group = warp.group;
    product.fenced = fenced_for(warp);
    auto& issued = warp.cta->issued[static_cast<size_t>(warp.index / kGroupWarps)];
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
  take_b(*warp.cta, product, of);
  add_product(of, product.type, product.n, product.accumulate, product.d);
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
