// The portable kernels of gemm/cuda on the emulator: dense products of f32, bf16 and f16
// activations, and products of rows that are sorted by matrix (grouped.h), against the fp64
// oracles.

#define NVTX_NO_IMPL  // launch.cuh is included and not called

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "dsv4/ops/gemm/cuda/gemv.cuh"
#include "dsv4/ops/gemm/cuda/list_tiles.cuh"
#include "dsv4/ops/gemm/cuda/mma.cuh"
#include "dsv4/ops/gemm/cuda/small_m.cuh"
#include "dsv4/ops/parts/expert_linear/expert_linear_case.h"
#include "dsv4/ops/parts/linear/linear_case.h"
#include "tests/emulator/launch.h"
#include "tests/harness/weights.h"

namespace dsv4 {
namespace {

using namespace gemm::cuda;

StridedWeight strided(const WeightView& w) {
  const auto row_bytes = [](const ConstTensorView& view) {
    return view.empty() ? 0 : view.row_stride() * item_bytes(view.dtype);
  };
  return {.format = w.format,
          .bits = w.bits,
          .data = w.data.data,
          .scale = w.scale.data,
          .codebook = w.codebook.empty() ? nullptr : w.codebook.as<float>(),
          .row_bytes = row_bytes(w.data),
          .scale_row_bytes = row_bytes(w.scale),
          .scale2 = w.scale2};
}

Problem problem_of(const ConstTensorView& x, const TensorView& out, int tile) {
  return {.x = x.data,
          .x_dtype = x.dtype,
          .x_stride = x.row_stride(),
          .out = out.data,
          .out_dtype = out.dtype,
          .out_stride = out.row_stride(),
          .n = static_cast<int>(out.dim(1)),
          .k = static_cast<int>(x.dim(1)),
          .m = x.dim(0),
          .tile_m = tile};
}

int slots(const Problem& p) {
  return static_cast<int>(p.tiles != nullptr ? p.max_tiles : ceil_div(p.m, int64_t{p.tile_m}));
}

// Two warps for each row, two passes at least.
template <class Decode, class X, int kTile>
void run_gemv_kernel(const Problem& p, uint64_t seed) {
  constexpr int kSplit = 2, kCtas = 2;
  const int rows = kWarps<kTile> / kSplit * kRows<Decode, kTile>;
  emulator::launch({.grid = {slots(p), kCtas},
                    .block = kWarps<kTile> * kWarp,
                    .shared = static_cast<size_t>(Staged<Decode, X, kTile>::bytes(p.k)),
                    .seed = seed},
                   [&] {
                     gemv_kernel<Decode, X, kTile>(
                         p, kSplit, static_cast<int>(ceil_div(int64_t{p.n}, int64_t{rows})));
                   });
}

template <class Decode, class X, int kTile>
void run_small_m_kernel(const Problem& p, uint64_t seed) {
  constexpr int kSplit = 4, kCtas = 2;
  const int units = p.k / Decode::kColumns, rows = kSmallMWarps / kSplit * kSmallMRows;
  const auto shared = static_cast<size_t>(staged_quads<Decode, kTile>(StagedRows(units)) * 16);
  emulator::launch(
      {.grid = {slots(p), kCtas}, .block = kSmallMThreads, .shared = shared, .seed = seed}, [&] {
        small_m_kernel<Decode, X, kTile>(p, kSplit,
                                         static_cast<int>(ceil_div(int64_t{p.n}, int64_t{rows})));
      });
}

template <class Decode, class X, int kTile>
void run_mma_kernel(const Problem& p, uint64_t seed) {
  constexpr int kN = MmaShape<kTile>::kN;
  emulator::launch({.grid = {slots(p), static_cast<int>(ceil_div(int64_t{p.n}, int64_t{kN}))},
                    .block = kMmaThreads,
                    .shared = 4 * kOperandBytes,
                    .seed = seed},
                   [&] { mma_kernel<Decode, X, kTile>(p); });
}

// X: what the GEMV kernel keeps of x; Operand: of the tensor core kernels
template <class Decode, class Operand>
void run_tile(const Problem& p, uint64_t seed) {
  using X = std::conditional_t<std::is_same_v<Operand, f16>, float, Operand>;
  switch (p.tile_m) {
    case 1:
      return run_gemv_kernel<Decode, X, 1>(p, seed);
    case 4:
      return run_gemv_kernel<Decode, X, 4>(p, seed);
    case 8:
      return run_small_m_kernel<Decode, Operand, 8>(p, seed);
    case 16:
      return run_small_m_kernel<Decode, Operand, 16>(p, seed);
    case 32:
      return run_mma_kernel<Decode, Operand, 32>(p, seed);
    default:
      return run_mma_kernel<Decode, Operand, 64>(p, seed);
  }
}

void expect_close(const TensorView& out, const std::vector<double>& want, test::Tolerance tolerance,
                  double magnitude, const WeightView& weight, DType x, int tile) {
  if (tile > 4) tolerance.abs += mma_rounding(weight, x) * magnitude;
  EXPECT_EQ(test::compare(out, want, tolerance), "") << "tile " << tile;
}

template <class Decode, class Operand>
void check_dense(const test::StoredAs& stored, DType dtype) {
  for (const int tile : {1, 4, 8, 16, 32, 64}) {
    SCOPED_TRACE(fmt::format("{} x {} tile {}", name(stored), name(dtype), tile));
    test::Arena arena;
    Rng rng(static_cast<uint64_t>(tile + stored.bits));
    const LinearArgs args =
        test::random_linear(arena, rng, {.t = tile + 3, .x = dtype, .out = dtype},
                            test::random_weight(arena, rng, stored, 70, 352));
    Problem p = problem_of(args.x, args.out, tile);
    p.weight[0] = strided(args.weight);
    test::fill_uniform(args.out, rng, 5, 6);
    run_tile<Decode, Operand>(p, static_cast<uint64_t>(tile));
    const double magnitude = linear_magnitude(args);
    expect_close(args.out, linear_oracle(args), test::linear_tolerance(args, magnitude), magnitude,
                 args.weight, dtype, tile);
  }
}

// Experts without rows, with one, with more than a tile; the list has them in one launch.
template <class Decode, class Operand>
void check_grouped(const test::StoredAs& stored, DType dtype, const std::vector<int32_t>& rows_of) {
  for (const int tile : {1, 4, 8, 32}) {
    SCOPED_TRACE(fmt::format("{} x {} tile {}", name(stored), name(dtype), tile));
    test::Arena arena;
    Rng rng(static_cast<uint64_t>(tile + stored.bits));
    std::vector<WeightView> weights;
    for (size_t e = 0; e < rows_of.size(); ++e)
      weights.push_back(test::random_weight(arena, rng, stored, 35, 96));
    std::swap(weights[0], weights[2]);  // at unequal distances
    const ExpertLinearArgs args = test::random_expert_linear(arena, rng, dtype, weights, rows_of);
    test::fill_uniform(args.out, rng, 5, 6);
    MatrixList list{};
    for (const WeightView& w : weights) {
      const StridedWeight s = strided(w);
      list.place[list.count] = {s.data,      s.scale,           s.codebook,
                                s.row_bytes, s.scale_row_bytes, s.scale2};
      list.index[list.count] = list.count;
      ++list.count;
    }
    std::vector<MatrixPlace> places(weights.size());
    std::vector<RowTile> tiles(static_cast<size_t>(args.x.dim(0)) + 1);
    int32_t num_tiles = -1;
    emulator::launch({.block = kSelectThreads}, [&] {
      list_tiles_kernel(list, args.offsets.as<int32_t>(), tile,
                        {places.data(), tiles.data(), &num_tiles});
    });
    int32_t want_tiles = 0;
    for (const int32_t rows : rows_of) want_tiles += (rows + tile - 1) / tile;
    ASSERT_EQ(num_tiles, want_tiles);
    Problem p = problem_of(args.x, args.out, tile);
    p.weight[0] = strided(weights[0]);
    p.weight[0].places = places.data();
    p.tiles = tiles.data(), p.num_tiles = &num_tiles, p.max_tiles = want_tiles + 1;
    run_tile<Decode, Operand>(p, static_cast<uint64_t>(tile));
    const double magnitude = expert_linear_magnitude(args), walk = 4 + std::sqrt(96.);
    const test::Tolerance tolerance{.ulps = dtype == DType::kF32 ? 2.0 : 0.51,
                                    .abs = 0x1p-24 * walk * magnitude};
    expect_close(args.out, expert_linear_oracle(args), tolerance, magnitude, weights[0], dtype,
                 tile);
  }
}

TEST(KbitProductsEmulated, DenseF16) {
  check_dense<DecodeKbit<2>, f16>({WeightFormat::kKbit, 2}, DType::kF16);
  check_dense<DecodeKbit<3>, f16>({WeightFormat::kKbit, 3}, DType::kF16);
  check_dense<DecodeKbit<4>, f16>({WeightFormat::kKbit, 4}, DType::kF16);
  check_dense<DecodeKbit<5>, f16>({WeightFormat::kKbit, 5}, DType::kF16);
  check_dense<DecodeNvfp4, f16>({WeightFormat::kNvfp4}, DType::kF16);
  check_dense<DecodeF16, f16>({WeightFormat::kF16}, DType::kF16);
}

TEST(KbitProductsEmulated, DenseBf16) {
  check_dense<DecodeKbit<2>, bf16>({WeightFormat::kKbit, 2}, DType::kBF16);
  check_dense<DecodeKbit<3>, bf16>({WeightFormat::kKbit, 3}, DType::kBF16);
  check_dense<DecodeKbit<4>, bf16>({WeightFormat::kKbit, 4}, DType::kBF16);
  check_dense<DecodeKbit<5>, bf16>({WeightFormat::kKbit, 5}, DType::kBF16);
  check_dense<DecodeMxfp4, bf16>({WeightFormat::kMxfp4}, DType::kBF16);
  check_dense<DecodeFp8, bf16>({WeightFormat::kFp8Block}, DType::kBF16);
}

TEST(KbitProductsEmulated, RowsSortedByMatrix) {
  for (const std::vector<int32_t>& rows_of :
       {std::vector<int32_t>{0, 1, 0, 37, 4}, {0, 0, 0, 0, 9}, {5, 0, 0, 0, 0}}) {
    check_grouped<DecodeKbit<3>, f16>({WeightFormat::kKbit, 3}, DType::kF16, rows_of);
    check_grouped<DecodeKbit<5>, bf16>({WeightFormat::kKbit, 5}, DType::kBF16, rows_of);
  }
}

}  // namespace
}  // namespace dsv4
