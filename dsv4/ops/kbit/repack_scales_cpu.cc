#include <algorithm>

#include "dsv4/cpu/parallel.h"
#include "dsv4/formats/scale_tiles.h"
#include "dsv4/ops/kbit/repack_scales.h"

namespace dsv4::repack_scales_kernel::cpu {
namespace {

// A row of tiles: 128 rows of the weight, or the last of them and zeros.
void to_tiles(const ConstTensorView& rows, const ScaleTiles& tiles, int64_t tile_row,
              uint8_t* out) {
  const int64_t begin = tile_row * ScaleTiles::kRows;
  const int64_t end = std::min(tiles.n, begin + ScaleTiles::kRows);
  const int64_t first = tiles.at(begin, 0);
  std::fill_n(out + first, tiles.tile_columns() * ScaleTiles::kBytes, uint8_t{0});
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t group = 0; group < tiles.groups; ++group)
      out[tiles.at(row, group)] = rows.row<uint8_t>(row)[group];
  }
}

}  // namespace

void run(const Context&, const RepackScalesArgs& args) {
  const bool to_tiled = args.direction == Repack::kToTiled;
  const ConstTensorView rows = to_tiled ? args.scales_in : ConstTensorView(args.scales_out);
  const ScaleTiles tiles{rows.dim(0), rows.dim(1)};
  const bool shared = dsv4::cpu::worth_sharing(4 * rows.numel());
  if (to_tiled) {
    auto* const out = reinterpret_cast<uint8_t*>(args.scales_out.data);
#pragma omp parallel for if (shared)
    for (int64_t i = 0; i < tiles.tile_rows(); ++i) to_tiles(rows, tiles, i, out);
    return;
  }
  const auto* const in = reinterpret_cast<const uint8_t*>(args.scales_in.data);
#pragma omp parallel for if (shared)
  for (int64_t row = 0; row < tiles.n; ++row) {
    for (int64_t group = 0; group < tiles.groups; ++group)
      args.scales_out.row<uint8_t>(row)[group] = in[tiles.at(row, group)];
  }
}

}  // namespace dsv4::repack_scales_kernel::cpu
