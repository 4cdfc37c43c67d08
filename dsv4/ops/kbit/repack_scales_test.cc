#include "dsv4/ops/kbit/repack_scales.h"

#include "dsv4/formats/scale_tiles.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using test::Arena;

TensorView random_rows(Arena& arena, DType dtype, int64_t n, int64_t groups) {
  const TensorView rows = arena.input(dtype, {n, groups});
  Rng rng(static_cast<uint64_t>(n * 100 + groups));
  for (int64_t i = 0; i < rows.numel(); ++i)
    rows.data[i] = static_cast<std::byte>(rng.bits() & 255);
  return rows;
}

std::vector<double> bytes_of(const ConstTensorView& view) {
  std::vector<double> bytes;
  for (int64_t i = 0; i < view.bytes(); ++i) bytes.push_back(static_cast<double>(view.data[i]));
  return bytes;
}

RepackScalesArgs to_tiles(Arena& arena, const TensorView& rows) {
  const ScaleTiles tiles{rows.dim(0), rows.dim(1)};
  return {.scales_in = rows,
          .scales_out = arena.output(DType::kU8, {tiles.tile_rows(), tiles.tile_columns(), 512})};
}

// Every scale is at its place and all else is zero; and back.
TEST(RepackScales, TilesAndBack) {
  for (const DType dtype : {DType::kU8, DType::kE4M3, DType::kE8M0}) {
    for (const int64_t n : {0, 1, 128, 300}) {
      for (const int64_t groups : {1, 4, 7, 130}) {
        Arena arena;
        const TensorView rows = random_rows(arena, dtype, n, groups);
        const RepackScalesArgs there = to_tiles(arena, rows);
        const ScaleTiles tiles{n, groups};
        std::vector<double> want(static_cast<size_t>(tiles.bytes()));
        for (int64_t row = 0; row < n; ++row) {
          for (int64_t group = 0; group < groups; ++group)
            want[static_cast<size_t>(tiles.at(row, group))] = rows.row<uint8_t>(row)[group];
        }
        const std::string name = fmt::format("repack_scales {}x{}", n, groups);
        test::OpCase<RepackScalesArgs> test{.name = name, .args = there};
        test.outputs = {{"tiles", there.scales_out, want, {.ulps = 0}}};
        check_op(repack_scales.impls, {}, arena, test);

        Arena second;  // in it, the output is an input
        const RepackScalesArgs back{.direction = Repack::kToFlat,
                                    .scales_in = there.scales_out,
                                    .scales_out = second.output(DType::kU8, {n, groups})};
        test::OpCase<RepackScalesArgs> from{.name = name + " back", .args = back};
        from.outputs = {{"rows", back.scales_out, bytes_of(rows), {.ulps = 0}}};
        from.strided = [](RepackScalesArgs& a, test::StridedCopy& copy) { copy(a.scales_out); };
        check_op(repack_scales.impls, {}, second, from);
      }
    }
  }
}

TEST(RepackScales, ReportErrors) {
  Arena arena;
  RepackScalesArgs args = to_tiles(arena, random_rows(arena, DType::kU8, 129, 5));
  args.scales_out = arena.output(DType::kU8, {1, 2, 512});
  EXPECT_EQ(test::error_of([&] { repack_scales({}, args); }),
            "tiles: want [2, 2, 512] F8_E4M3|F8_E8M0|U8, got [1, 2, 512] U8");
}

}  // namespace
}  // namespace dsv4
