#include "dsv4/ops/kbit/repack_kbit.h"

#include "dsv4/base/error.h"
#include "dsv4/formats/kbit.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using test::Arena;

struct Flat {
  TensorView planes, scales;
};

Flat random_flat(Arena& arena, int bits, int64_t n, int64_t blocks) {
  const Flat flat{arena.input(DType::kI32, {n, blocks * bits}),
                  arena.input(DType::kU8, {n, blocks})};
  Rng rng(static_cast<uint64_t>(bits * 1000 + n + blocks));
  for (int64_t i = 0; i < flat.planes.numel(); ++i)
    flat.planes.as<uint32_t>()[i] = static_cast<uint32_t>(rng.bits());
  for (int64_t i = 0; i < flat.scales.numel(); ++i)
    flat.scales.as<uint8_t>()[i] = static_cast<uint8_t>(rng.bits());
  return flat;
}

// Every word is at KbitTiles' position, and the padding is zero.
test::OpCase<RepackKbitArgs> to_tiled(Arena& arena, const Flat& flat, int bits) {
  const int64_t n = flat.scales.dim(0), blocks = flat.scales.dim(1), tiles = ceil_div(blocks, 2);
  const RepackKbitArgs args{.direction = Repack::kToTiled,
                            .bits = bits,
                            .planes_in = flat.planes,
                            .scales_in = flat.scales,
                            .planes_out = arena.output(DType::kI32, {tiles, n, 2 * bits}),
                            .scales_out = arena.output(DType::kU8, {tiles, n, 2})};
  const KbitTiles at{n, blocks * kKbitBlock, bits};
  std::vector<double> planes(static_cast<size_t>(args.planes_out.numel()));
  std::vector<double> scales(static_cast<size_t>(args.scales_out.numel()));
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t b = 0; b < blocks; ++b) {
      scales[static_cast<size_t>(at.block(row, b))] = flat.scales.row<uint8_t>(row)[b];
      for (int j = 0; j < bits; ++j)
        planes[static_cast<size_t>(at.word(row, b, j))] =
            flat.planes.row<int32_t>(row)[b * bits + j];
    }
  }
  test::OpCase<RepackKbitArgs> test{.name = fmt::format("repack {}x{} K={}", n, blocks, bits),
                                    .args = args};
  test.outputs = {{"planes", args.planes_out, planes, {.ulps = 0}},
                  {"scales", args.scales_out, scales, {.ulps = 0}}};
  return test;
}

TEST(RepackKbit, TilesAndBack) {
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    for (const int64_t n : {0, 256}) {
      for (const int64_t blocks : {1, 2, 7}) {
        Arena arena;
        const Flat flat = random_flat(arena, bits, n, blocks);
        const auto there = to_tiled(arena, flat, bits);
        check_op(repack_kbit.impls, {}, arena, there);

        Arena second;  // in it, the output is an input
        const RepackKbitArgs back{.direction = Repack::kToFlat,
                                  .bits = bits,
                                  .planes_in = there.args.planes_out,
                                  .scales_in = there.args.scales_out,
                                  .planes_out = second.output(DType::kI32, {n, blocks * bits}),
                                  .scales_out = second.output(DType::kU8, {n, blocks})};
        test::OpCase<RepackKbitArgs> test{.name = there.name + " back", .args = back};
        const auto values = [](const TensorView& view) {
          std::vector<double> all;
          for (int64_t i = 0; i < view.numel(); ++i) all.push_back(test::value_at(view, i));
          return all;
        };
        test.outputs = {{"planes", back.planes_out, values(flat.planes), {.ulps = 0}},
                        {"scales", back.scales_out, values(flat.scales), {.ulps = 0}}};
        check_op(repack_kbit.impls, {}, second, test);
      }
    }
  }
}

TEST(RepackKbit, ReportsErrors) {
  Arena arena;
  const Flat flat = random_flat(arena, 3, 128, 4);
  RepackKbitArgs args = to_tiled(arena, flat, 3).args;
  args.bits = 1;
  EXPECT_NE(test::error_of([&] { repack_kbit({}, args); }).find("2 to 5 bits, got 1"),
            std::string::npos);
  args.bits = 4;
  EXPECT_EQ(test::error_of([&] { repack_kbit({}, args); }),
            "flat planes: want [n=128, 16] I32, got [128, 12] I32");
  args.bits = 3;
  args.planes_out = args.planes_out.slice(0, 0, 1);
  EXPECT_EQ(test::error_of([&] { repack_kbit({}, args); }),
            "tiled planes: want [2, n=128, 6] I32, got [1, 128, 6] I32");
  args = to_tiled(arena, random_flat(arena, 3, 64, 4), 3).args;
  EXPECT_NE(test::error_of([&] { repack_kbit({}, args); }).find("n=64 is not a multiple of 128"),
            std::string::npos);
}

}  // namespace
}  // namespace dsv4
