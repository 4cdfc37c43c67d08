// The kernels of ops/kbit on the emulator, against the CPU's bits: quantization to k-bit and FP4
// with and without a search, tiles, images, the largest magnitude, and the sums of errors.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "dsv4/formats/pack_kbit_image.h"
#include "dsv4/ops/kbit/quantize_fp4.cuh"
#include "dsv4/ops/kbit/quantize_fp4.h"
#include "dsv4/ops/kbit/quantize_kbit_case.h"
#include "dsv4/ops/kbit/quantize_kbit_gpu.cuh"
#include "dsv4/ops/kbit/repack_kbit.cuh"
#include "dsv4/ops/kbit/repack_kbit.h"
#include "dsv4/ops/kbit/repack_scales.cuh"
#include "dsv4/ops/kbit/repack_scales.h"
#include "dsv4/ops/kbit/row_errors.cuh"
#include "dsv4/ops/kbit/row_errors_case.h"
#include "dsv4/ops/kbit/unpack_image.cuh"
#include "tests/emulator/launch.h"
#include "tests/harness/weights.h"

namespace dsv4 {
namespace {

using kbit_kernel::GpuQuantizer;
constexpr int32_t kNone = std::numeric_limits<int32_t>::max();

// As quantize_kbit_cuda.cu fills it.
GpuQuantizer quantizer_of(const QuantizeKbitArgs& args, int32_t* first_bad) {
  const kbit_kernel::Quantizer by(args.codebook, args.choice);
  GpuQuantizer q{.x = args.x.data,
                 .x_dtype = args.x.dtype,
                 .x_stride = args.x.row_stride(),
                 .rows = args.x.dim(0),
                 .k = args.x.dim(1),
                 .blocks = args.scales.dim(1),
                 .importance = args.importance.empty() ? nullptr : args.importance.as<float>(),
                 .inverse_scale = 1 / args.tensor_scale,
                 .reference = args.choice == ScaleChoice::kReference,
                 .bits = args.codebook.bits,
                 .reach = by.reach,
                 .limit = by.limit,
                 .largest = args.codebook.largest(),
                 .unit = by.unit,
                 .magnitudes = by.magnitudes,
                 .planes = args.planes.as<uint32_t>(),
                 .plane_stride = args.planes.row_stride(),
                 .scales = args.scales.as<uint8_t>(),
                 .scale_stride = args.scales.row_stride(),
                 .first_bad = first_bad};
  std::copy_n(args.codebook.value.begin(), args.codebook.size(), q.codebook);
  std::copy(by.level.begin(), by.level.end(), q.level);
  return q;
}

void run_quantize(const GpuQuantizer& q) {
  const int levels = q.magnitudes ? 1 << (q.bits - 1) : 1 << q.bits;
  emulator::launch(
      {.grid = static_cast<int>(ceil_div(q.rows * q.blocks, int64_t{kbit_kernel::kBlocksAtOnce})),
       .block = kbit_kernel::kBlocksAtOnce * kWarp},
      [&] {
        levels == 2    ? kbit_kernel::quantize_kernel<2>(q)
        : levels == 4  ? kbit_kernel::quantize_kernel<4>(q)
        : levels == 8  ? kbit_kernel::quantize_kernel<8>(q)
        : levels == 16 ? kbit_kernel::quantize_kernel<16>(q)
                       : kbit_kernel::quantize_kernel<32>(q);
      });
}

std::vector<Codebook> codebooks() {
  std::vector<Codebook> all{e2m1_codebook()};
  Rng rng(11);
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    all.push_back(nf_codebook(bits)), all.push_back(bnf_codebook(bits));
    all.push_back(e4m3_codebook(bits));
    std::vector<float> values(size_t{1} << bits);
    for (float& v : values) v = static_cast<float>(rng.uniform(-0.7, 1.3));
    std::sort(values.begin(), values.end());
    all.push_back(user_codebook(values));
  }
  return all;
}

// Blocks of different sizes and shapes: Gaussian, outliers, zeros, equal magnitudes (several scale
// bytes then have the same error), tiny.
void fill_blocks(const TensorView& x, Rng& rng) {
  test::fill_normal(x, rng);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const int64_t kind = i % x.dim(1) / kKbitBlock % 5;
    const double v = test::value_at(x, i);
    test::set_value(x, i,
                    kind == 1 && i % 7 == 0 ? 2 * v
                    : kind == 2             ? 0
                    : kind == 3             ? (v < 0 ? -0.5 : 0.5)
                    : kind == 4             ? v * 1e-4
                                            : v / 3);
  }
}

struct Scene {
  DType dtype = DType::kF32;
  ScaleChoice choice = ScaleChoice::kSearched;
  bool importance = false;
  float tensor_scale = 1;
};

void check_quantize(const Codebook& book, int64_t n, int64_t k, const Scene& scene) {
  SCOPED_TRACE(fmt::format("K={} [{}, {}] {} importance {}", book.bits, n, k, name(scene.choice),
                           scene.importance));
  test::Arena arena;
  Rng rng(static_cast<uint64_t>(n * 31 + k + book.bits));
  const TensorView x = arena.input(scene.dtype, {n, k});
  fill_blocks(x, rng);
  QuantizeKbitArgs want = test::quantize_kbit_of(arena, x, book, scene.choice);
  want.tensor_scale = scene.tensor_scale;
  if (scene.importance) {
    const TensorView importance = arena.input(DType::kF32, {k});
    test::fill_uniform(importance, rng, 0, 3);
    std::fill_n(importance.as<float>(), std::min<int64_t>(k, kKbitBlock), 0.f);
    want.importance = importance;
  }
  quantize_kbit({}, want);
  QuantizeKbitArgs got = want;
  got.planes = arena.output(DType::kI32, {n, want.planes.dim(1)});
  got.scales = arena.output(DType::kU8, {n, want.scales.dim(1)});
  int32_t first_bad = kNone;
  run_quantize(quantizer_of(got, &first_bad));
  EXPECT_EQ(first_bad, kNone);
  for (int64_t i = 0; i < want.scales.numel(); ++i)
    ASSERT_EQ(got.scales.as<uint8_t>()[i], want.scales.as<uint8_t>()[i]) << "block " << i;
  for (int64_t i = 0; i < want.planes.numel(); ++i)
    ASSERT_EQ(got.planes.as<uint32_t>()[i], want.planes.as<uint32_t>()[i]) << "word " << i;
}

TEST(KbitConvertEmulated, QuantizesToTheBitsOfTheCpu) {
  for (const Codebook& book : codebooks()) {
    check_quantize(book, 3, 345, {});
    check_quantize(book, 2, 345, {.importance = true});
    check_quantize(book, 3, 345, {.choice = ScaleChoice::kReference});
  }
  for (const DType dtype : {DType::kBF16, DType::kF16})
    check_quantize(bnf_codebook(3), 2, 200, {.dtype = dtype, .tensor_scale = 0.5f});
}

TEST(KbitConvertEmulated, NamesTheFirstBlockThatItCannotWrite) {
  for (const float bad : {NAN, INFINITY, 40.f}) {
    test::Arena arena;
    const TensorView x = arena.input(DType::kF32, {3, 96});
    std::fill_n(x.as<float>(), x.numel(), 0.5f);
    x.as<float>()[96 + 40] = bad, x.as<float>()[2 * 96] = bad;
    const QuantizeKbitArgs args =
        test::quantize_kbit_of(arena, x, nf_codebook(3), ScaleChoice::kSearched);
    int32_t first_bad = kNone;
    run_quantize(quantizer_of(args, &first_bad));
    EXPECT_EQ(first_bad, 3 + 1) << bad;
  }
}

TEST(KbitConvertEmulated, NamesTheFirstBlockWithBadImportance) {
  for (const float bad : {NAN, INFINITY, -1.f}) {
    test::Arena arena;
    const TensorView x = arena.input(DType::kF32, {3, 96});
    const TensorView importance = arena.input(DType::kF32, {96});
    std::fill_n(x.as<float>(), x.numel(), 0.5f);
    std::fill_n(importance.as<float>(), 96, 1.f);
    importance.as<float>()[40] = bad;
    QuantizeKbitArgs args =
        test::quantize_kbit_of(arena, x, nf_codebook(3), ScaleChoice::kSearched);
    args.importance = importance;
    int32_t first_bad = kNone;
    run_quantize(quantizer_of(args, &first_bad));
    EXPECT_EQ(first_bad, 1) << bad;
  }
}

TEST(KbitConvertEmulated, FindsTheLargestMagnitude) {
  test::Arena arena;
  Rng rng(3);
  const TensorView x = arena.input(DType::kBF16, {5, 700});
  test::fill_normal(x, rng);
  test::set_value(x, 2345, -9.5);
  GpuQuantizer q{.x = x.data, .x_dtype = x.dtype, .x_stride = 700, .rows = 5, .k = 700};
  int bits = 0;
  emulator::launch({.grid = 3, .block = 256}, [&] { kbit_kernel::largest_kernel(q, &bits); });
  EXPECT_EQ(std::bit_cast<float>(bits), largest_magnitude(x));
  EXPECT_EQ(std::bit_cast<float>(bits), 9.5f);
}

struct Fp4Run {
  std::vector<uint8_t> pairs, scales;
  int32_t first_bad = kNone;
};

Fp4Run run_fp4(const QuantizeFp4Args& args) {
  namespace kernel = quantize_fp4_kernel;
  Fp4Run out{std::vector<uint8_t>(static_cast<size_t>(args.pairs.numel()), 0xee),
             std::vector<uint8_t>(static_cast<size_t>(args.scales.numel()), 0xee)};
  const bool mx = args.format == WeightFormat::kMxfp4;
  const kernel::Fp4Quantizer q{
      .x = args.x.as<float>(),
      .x_stride = args.x.row_stride(),
      .rows = args.x.dim(0),
      .groups = args.scales.dim(1),
      .group = mx ? 32 : 16,
      .importance = args.importance.empty() ? nullptr : args.importance.as<float>(),
      .mx = mx,
      .searched = args.searched,
      .scale2 = args.scale2,
      .pairs = out.pairs.data(),
      .pair_stride = args.pairs.dim(1),
      .scales = out.scales.data(),
      .scale_stride = args.scales.dim(1),
      .first_bad = &out.first_bad};
  emulator::launch(
      {.grid = static_cast<int>(ceil_div(q.rows * q.groups, int64_t{kernel::kThreads})),
       .block = kernel::kThreads},
      [&] { kernel::quantize_fp4_kernel(q); });
  return out;
}

TEST(KbitConvertEmulated, QuantizesToTheFp4OfTheCpu) {
  for (const bool mx : {false, true}) {
    for (const bool searched : {false, true}) {
      for (const bool importance : {false, true}) {
        SCOPED_TRACE(fmt::format("MXFP4 {} searched {} importance {}", mx, searched, importance));
        test::Arena arena;
        Rng rng(31);
        const int64_t n = 5, k = 992;
        const TensorView x = arena.input(DType::kF32, {n, k});
        fill_blocks(x, rng);
        const TensorView h = arena.input(DType::kF32, {k});
        test::fill_uniform(h, rng, 0, 3);
        QuantizeFp4Args args{.format = mx ? WeightFormat::kMxfp4 : WeightFormat::kNvfp4,
                             .x = x,
                             .searched = searched,
                             .scale2 = mx ? 1.f : nvfp4_tensor_scale(largest_magnitude(x)),
                             .pairs = arena.output(DType::kU8, {n, k / 2}),
                             .scales = mx ? arena.output(DType::kE8M0, {n, k / 32})
                                          : arena.output(DType::kE4M3, {n, k / 16})};
        if (importance) args.importance = h;
        quantize_fp4({}, args);
        Fp4Run got = run_fp4(args);
        EXPECT_TRUE(std::equal(got.pairs.begin(), got.pairs.end(), args.pairs.as<uint8_t>()));
        EXPECT_EQ(std::memcmp(got.scales.data(), args.scales.data, got.scales.size()), 0);
        EXPECT_EQ(got.first_bad, kNone);
        x.as<float>()[k + 40] = INFINITY, x.as<float>()[3 * k] = NAN;
        got = run_fp4(args);
        EXPECT_EQ(got.first_bad, args.scales.dim(1) + 40 / (mx ? 32 : 16));
      }
    }
  }
}

TEST(KbitConvertEmulated, AddsErrorsToTheBitsOfTheCpu) {
  using namespace row_errors_kernel;
  for (const bool importance : {false, true}) {
    for (const auto& [n, k] : {std::pair{1, 1}, {65, 70}, {130, 33}, {3, 200}}) {
      SCOPED_TRACE(fmt::format("[{}, {}] importance {}", n, k, importance));
      test::Arena arena;
      Rng rng(static_cast<uint64_t>(n + k));
      const RowErrorsArgs args = test::random_row_errors(arena, rng, n, k, importance);
      row_errors({}, args);
      std::vector<double> sums(static_cast<size_t>(n * kErrorSums), -1.);
      const RowErrors errors{.x = args.x.as<float>(),
                             .y = args.y.as<float>(),
                             .x_stride = k,
                             .y_stride = k,
                             .importance = importance ? args.importance.as<float>() : nullptr,
                             .sums = sums.data(),
                             .sums_stride = kErrorSums,
                             .rows = n,
                             .k = k};
      emulator::launch(
          {.grid = static_cast<int>(ceil_div(n, kWarps * kWarp)), .block = kWarps * kWarp},
          [&] { row_errors_kernel::row_errors_kernel(errors); });
      EXPECT_TRUE(std::equal(sums.begin(), sums.end(), args.sums.as<double>()));
    }
  }
}

template <class T>
void run_repack(const kbit_packing::RepackSides<T>& sides) {
  const int64_t item = int64_t{2} * sides.width;
  emulator::launch(
      {.grid = {static_cast<int>(ceil_div(sides.n * item, int64_t{kbit_packing::kRepackThreads})),
                static_cast<int>(ceil_div(sides.flat_width, item))},
       .block = kbit_packing::kRepackThreads},
      [&] { kbit_packing::repack_kernel(sides); });
}

TEST(KbitConvertEmulated, TilesHaveTheWordsOfTheCpu) {
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    for (const int64_t blocks : {1, 4, 7}) {
      constexpr int64_t kN = 128;
      test::Arena arena;
      Rng rng(static_cast<uint64_t>(bits + blocks));
      const TensorView flat = arena.input(DType::kI32, {kN, blocks * bits}),
                       scales = arena.input(DType::kU8, {kN, blocks});
      for (int64_t i = 0; i < flat.numel(); ++i)
        flat.as<uint32_t>()[i] = static_cast<uint32_t>(rng.bits());
      for (int64_t i = 0; i < scales.numel(); ++i)
        scales.as<uint8_t>()[i] = static_cast<uint8_t>(rng.bits());
      const int64_t tiles = ceil_div(blocks, 2);
      const TensorView want = arena.output(DType::kI32, {tiles, kN, 2 * bits}),
                       want_scales = arena.output(DType::kU8, {tiles, kN, 2});
      repack_kbit({}, {.bits = bits,
                       .planes_in = flat,
                       .scales_in = scales,
                       .planes_out = want,
                       .scales_out = want_scales});
      std::vector<uint32_t> tiled(static_cast<size_t>(want.numel()), 0xeeeeeeee);
      run_repack<uint32_t>(
          {flat.as<uint32_t>(), tiled.data(), flat.dim(1), kN, flat.dim(1), bits, true});
      EXPECT_TRUE(std::equal(tiled.begin(), tiled.end(), want.as<uint32_t>()));
      std::vector<uint32_t> back(static_cast<size_t>(flat.numel()), 0xeeeeeeee);
      run_repack<uint32_t>({tiled.data(), back.data(), flat.dim(1), kN, flat.dim(1), bits, false});
      EXPECT_TRUE(std::equal(back.begin(), back.end(), flat.as<uint32_t>()));
      std::vector<uint8_t> tiled_scales(static_cast<size_t>(want_scales.numel()), 0xee);
      run_repack<uint8_t>({scales.as<uint8_t>(), tiled_scales.data(), blocks, kN, blocks, 1, true});
      EXPECT_TRUE(std::equal(tiled_scales.begin(), tiled_scales.end(), want_scales.as<uint8_t>()));
    }
  }
}

template <int K, ImageScale kScale = ImageScale::kE4M4>
void check_image(const test::StoredAs& stored, int64_t n, int64_t k, bool symmetric) {
  SCOPED_TRACE(fmt::format("{} [{}, {}] {}", name(stored), n, k, symmetric));
  using namespace kbit_packing;
  test::Arena arena;
  Rng rng(static_cast<uint64_t>(n + k + K));
  const WeightView w = test::random_weight(arena, rng, stored, n, k);
  const float* codebook = w.codebook.empty() ? nullptr : w.codebook.as<float>();
  if (codebook != nullptr) {
    auto* values = const_cast<float*>(codebook);
    const Codebook book = bnf_codebook(K);
    std::copy(book.values().begin(), book.values().end(), values);
    if (!symmetric) values[0] *= 2;
  }
  const KbitImage image = kbit_image(w), shape = image_shape(w);
  ASSERT_EQ(image.sign_magnitude, symmetric);
  std::vector<uint8_t> want(static_cast<size_t>(image.bytes()));
  const auto strip = static_cast<size_t>(image.strip_bytes());
  for (int64_t s = 0; s < image.num_strips(); ++s)
    pack_kbit_strip(image, {&w, 1}, s,
                    std::span(want).subspan(static_cast<size_t>(s) * strip, strip));
  const int64_t units = image.num_strips() * image.units_along_k();
  const emulator::Launch how{.grid = static_cast<int>(ceil_div(units, int64_t{kWarps})),
                             .block = kWarps * kWarp};
  std::vector<uint8_t> bytes(want.size(), 0xee);
  const FlatKbit flat{reinterpret_cast<const uint32_t*>(w.data.data),
                      reinterpret_cast<const uint8_t*>(w.scale.data)};
  emulator::launch(how, [&] {
    pack_by_codebook_kernel<K, kScale>(shape, codebook, Source{flat, flat, 1},
                                       reinterpret_cast<std::byte*>(bytes.data()));
  });
  EXPECT_EQ(bytes, want);
  std::vector<uint32_t> planes(static_cast<size_t>(w.data.bytes() / 4), 0xeeeeeeee);
  std::vector<uint8_t> scale(static_cast<size_t>(w.scale.bytes()), 0xee);
  emulator::launch(how, [&] {
    unpack_kernel<K, kScale>(shape, codebook, reinterpret_cast<const std::byte*>(want.data()),
                             ImageRows{planes.data(), scale.data()});
  });
  EXPECT_TRUE(
      std::equal(planes.begin(), planes.end(), reinterpret_cast<const uint32_t*>(w.data.data)));
  EXPECT_TRUE(
      std::equal(scale.begin(), scale.end(), reinterpret_cast<const uint8_t*>(w.scale.data)));
}

TEST(KbitConvertEmulated, ImagesThereAndBack) {
  for (const int64_t n : {16, 40}) {
    for (const int64_t k : {32, 288, 512}) {
      for (const bool symmetric : {true, false}) {
        check_image<2>({WeightFormat::kKbit, 2}, n, k, symmetric);
        check_image<3>({WeightFormat::kKbit, 3}, n, k, symmetric);
        check_image<4>({WeightFormat::kKbit, 4}, n, k, symmetric);
        check_image<5>({WeightFormat::kKbit, 5}, n, k, symmetric);
      }
      check_image<4, ImageScale::kUe8m0>({WeightFormat::kMxfp4}, n, k, true);
      check_image<4, ImageScale::kE4M3>({WeightFormat::kNvfp4}, n, k, true);
    }
  }
}

TEST(KbitConvertEmulated, ScaleTilesHaveTheBytesOfTheCpu) {
  namespace kernel = repack_scales_kernel;
  for (const auto& [n, groups] : {std::pair{1, 1}, {128, 4}, {300, 7}, {33, 130}}) {
    test::Arena arena;
    Rng rng(static_cast<uint64_t>(n));
    const ScaleTiles tiles{n, groups};
    const TensorView rows = arena.input(DType::kU8, {n, groups}),
                     want =
                         arena.output(DType::kU8, {tiles.tile_rows(), tiles.tile_columns(), 512});
    for (int64_t i = 0; i < rows.numel(); ++i)
      rows.as<uint8_t>()[i] = static_cast<uint8_t>(rng.bits());
    repack_scales({}, {.scales_in = rows, .scales_out = want});
    std::vector<uint8_t> tiled(static_cast<size_t>(tiles.bytes()), 0xee);
    std::vector<uint8_t> back(static_cast<size_t>(rows.numel()), 0xee);
    const auto run = [&](const uint8_t* in, uint8_t* out, bool to_tiled) {
      const kernel::ScaleSides sides{in, out, groups, tiles, to_tiled};
      emulator::launch(
          {.grid = static_cast<int>(ceil_div(tiles.bytes() / 4, int64_t{kernel::kThreads})),
           .block = kernel::kThreads},
          [&] { kernel::repack_scales_kernel(sides); });
    };
    run(rows.as<uint8_t>(), tiled.data(), true);
    EXPECT_TRUE(std::equal(tiled.begin(), tiled.end(), want.as<uint8_t>()));
    run(tiled.data(), back.data(), false);
    EXPECT_TRUE(std::equal(back.begin(), back.end(), rows.as<uint8_t>()));
  }
}

}  // namespace
}  // namespace dsv4
