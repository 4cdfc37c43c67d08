#include "dsv4/ops/kbit/import_mxfp4.h"

#include <bit>
#include <cmath>

#include "dsv4/formats/e2m1.h"
#include "dsv4/formats/kbit.h"
#include "tests/harness/op_check.h"
#include "tests/harness/weights.h"

namespace dsv4 {
namespace {

using test::Arena;

struct Import {
  Arena arena;
  Codebook codebook = e2m1_codebook();
  TensorView pairs, mx_scales;
  ImportMxfp4Args args;

  // Codes uniform over all 16; scale bytes [low, high).
  Import(int64_t n, int64_t k, int64_t low, int64_t high, uint64_t seed = 1)
      : pairs(arena.input(DType::kU8, {n, k / 2})),
        mx_scales(arena.input(DType::kE8M0, {n, k / 32})) {
    Rng rng(seed);
    for (int64_t i = 0; i < pairs.numel(); ++i)
      pairs.as<uint8_t>()[i] = static_cast<uint8_t>(rng.bits());
    for (int64_t i = 0; i < mx_scales.numel(); ++i)
      mx_scales.as<uint8_t>()[i] = static_cast<uint8_t>(low + rng.below(high - low));
    args = {.weight =
                {.format = WeightFormat::kMxfp4, .n = n, .k = k, .data = pairs, .scale = mx_scales},
            .planes = arena.output(DType::kI32, {n, k / 32 * 4}),
            .scales = arena.output(DType::kU8, {n, k / 32})};
  }

  ImportMxfp4Result run() {
    arena.freeze();
    arena.prepare();
    const ImportMxfp4Result result = import_mxfp4(args);
    arena.verify();
    return result;
  }

  void make_zero(int64_t row, int64_t block) {
    for (int64_t i = 0; i < 16; ++i) pairs.row<uint8_t>(row)[block * 16 + i] &= 0x88;
  }

  void expect_equal(const ImportMxfp4Result& result) const {
    const WeightView image{.format = WeightFormat::kKbit,
                           .n = args.weight.n,
                           .k = args.weight.k,
                           .data = args.planes,
                           .scale = args.scales,
                           .scale2 = result.tensor_scale,
                           .bits = 4,
                           .codebook = {TensorMeta::contiguous(DType::kF32, {16}),
                                        reinterpret_cast<const std::byte*>(codebook.value.data())}};
    for (int64_t n = 0; n < image.n; ++n) {
      for (int64_t k = 0; k < image.k; ++k) {
        const double want = weight_value(args.weight, n, k), got = weight_value(image, n, k);
        ASSERT_EQ(std::bit_cast<uint64_t>(got), std::bit_cast<uint64_t>(want))
            << n << ", " << k << ": " << got << " for " << want;
      }
    }
  }

  bool untouched() const {
    for (const std::byte b : arena.written()) {
      if (b != std::byte{0xff}) return false;
    }
    return true;
  }
};

TEST(ImportMxfp4, EveryValueIsEqual) {
  for (const int threads : {1, 2}) {
    const test::ThreadCount scope(threads);
    for (const int64_t n : {0, 1, 5}) {
      for (const int64_t k : {32, 96, 1024}) {
        Import import(n, k, 110, 129, static_cast<uint64_t>(n + k));  // 2^-14 .. 2^4 for E4M4
        const ImportMxfp4Result result = import.run();
        EXPECT_TRUE(result.fits());
        EXPECT_EQ(result.tensor_scale, 1.f);
        import.expect_equal(result);
      }
    }
  }
}

TEST(ImportMxfp4, TensorScaleShiftsTheRange) {
  for (int low = 0; low <= 236; ++low) {
    Import import(3, 256, low, low + 19, static_cast<uint64_t>(low));
    import.mx_scales.as<uint8_t>()[0] = static_cast<uint8_t>(low);
    import.mx_scales.as<uint8_t>()[23] = static_cast<uint8_t>(low + 18);
    const ImportMxfp4Result result = import.run();
    ASSERT_TRUE(result.fits()) << low;
    EXPECT_EQ(result.tensor_scale, std::exp2(static_cast<float>(low - 110)));
    EXPECT_EQ(result.smallest_exponent, low - 127);
    EXPECT_EQ(result.largest_exponent, low + 18 - 127);
    import.expect_equal(result);
  }
}

TEST(ImportMxfp4, ShiftsByTheLeastThatFits) {
  Import import(2, 64, 130, 131);  // needs 2^6, E4M4 ends at 2^4
  EXPECT_EQ(import.run().tensor_scale, 4.f);
  Import low(2, 64, 100, 101);
  EXPECT_EQ(low.run().tensor_scale, 0x1p-10f);
}

TEST(ImportMxfp4, CountsBlocksThatDoNotFitAndWritesNothing) {
  Import import(4, 320, 110, 129);
  import.mx_scales.as<uint8_t>()[3] = 109;
  import.mx_scales.as<uint8_t>()[4] = 128;
  import.mx_scales.as<uint8_t>()[5] = 128;
  import.mx_scales.as<uint8_t>()[17] = 50;
  const ImportMxfp4Result result = import.run();
  EXPECT_FALSE(result.fits());
  EXPECT_EQ(result.blocks_out_of_range, 2);
  EXPECT_EQ(result.blocks_nan, 0);
  EXPECT_EQ(result.smallest_exponent, 50 - 127);
  EXPECT_TRUE(import.untouched());
}

TEST(ImportMxfp4, NanScalesDoNotFit) {
  Import import(2, 96, 120, 124);
  import.mx_scales.as<uint8_t>()[1] = 255;
  import.mx_scales.as<uint8_t>()[4] = 255;
  import.make_zero(1, 1);  // 0 * NaN is NaN too
  const ImportMxfp4Result result = import.run();
  EXPECT_FALSE(result.fits());
  EXPECT_EQ(result.blocks_nan, 2);
  EXPECT_EQ(result.blocks_out_of_range, 0);
  EXPECT_TRUE(import.untouched());
}

TEST(ImportMxfp4, ZeroBlocksFitWithAnyScale) {
  Import import(2, 128, 118, 123);
  import.make_zero(0, 1);
  import.make_zero(1, 3);
  import.mx_scales.row<uint8_t>(0)[1] = 0;
  import.mx_scales.row<uint8_t>(1)[3] = 254;
  const ImportMxfp4Result result = import.run();
  EXPECT_TRUE(result.fits());
  EXPECT_EQ(import.args.scales.row<uint8_t>(0)[1], 0);
  EXPECT_EQ(import.args.scales.row<uint8_t>(1)[3], 0);
  import.expect_equal(result);

  Import zeros(2, 64, 7, 8);
  for (int64_t b = 0; b < 4; ++b) zeros.make_zero(b / 2, b % 2);
  EXPECT_EQ(zeros.run().tensor_scale, 1.f);
  zeros.expect_equal(zeros.run());
}

TEST(ImportMxfp4, CodesMatchTheSortedCodebook) {
  Import import(1, 32, 124, 125);
  for (int64_t i = 0; i < 16; ++i) import.pairs.as<uint8_t>()[i] = static_cast<uint8_t>(i * 16 + i);
  import.run();
  const Codebook book = e2m1_codebook();
  for (int i = 0; i < 32; ++i) {
    const auto e2m1 = static_cast<uint8_t>(i / 2);
    const uint8_t code = kbit_code(import.args.planes.as<uint32_t>(), 4, i);
    EXPECT_EQ(code, e2m1 < 8 ? 8 + e2m1 : 15 - e2m1);
    EXPECT_EQ(std::bit_cast<uint32_t>(book.value[code] * 8),
              std::bit_cast<uint32_t>(e2m1_to_f32(e2m1)));
  }
  EXPECT_EQ(import.args.scales.as<uint8_t>()[0], 0xB0);
}

TEST(ImportMxfp4, ReportsErrors) {
  Import import(2, 64, 120, 121);
  ImportMxfp4Args args = import.args;
  args.weight.format = WeightFormat::kNvfp4;
  EXPECT_NE(test::error_of([&] { import_mxfp4(args); }).find("want mxfp4, got nvfp4"),
            std::string::npos);
  args = import.args;
  args.planes = args.planes.slice(1, 0, 4);
  EXPECT_EQ(test::error_of([&] { import_mxfp4(args); }), "planes: want [2, 8] I32, got [2, 4] I32");
}

}  // namespace
}  // namespace dsv4
