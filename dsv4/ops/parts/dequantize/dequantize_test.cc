#include "dsv4/ops/parts/dequantize/dequantize.h"

#include <cmath>

#include "dsv4/base/error.h"
#include "dsv4/formats/kbit.h"
#include "dsv4/ops/parts/dequantize/dequantize_case.h"
#include "tests/harness/op_check.h"
#include "tests/harness/weights.h"

namespace dsv4 {
namespace {

using test::Arena;

// Every code and every scale byte, with an arbitrary codebook.
WeightView random_kbit(Arena& arena, Rng& rng, int bits, int64_t n, int64_t k, float scale2) {
  const int64_t blocks = k / kKbitBlock;
  const TensorView planes = arena.input(DType::kI32, {n, blocks * bits});
  const TensorView scales = arena.input(DType::kU8, {n, blocks});
  const TensorView codebook = arena.input(DType::kF32, {int64_t{1} << bits});
  for (int64_t i = 0; i < planes.numel(); ++i)
    planes.as<uint32_t>()[i] = static_cast<uint32_t>(rng.bits());
  for (int64_t i = 0; i < scales.numel(); ++i)
    scales.as<uint8_t>()[i] = static_cast<uint8_t>(rng.bits());
  test::fill_normal(codebook, rng);
  return {.format = WeightFormat::kKbit,
          .n = n,
          .k = k,
          .data = planes,
          .scale = scales,
          .scale2 = scale2,
          .bits = bits,
          .codebook = codebook};
}

void check_weight(Arena& arena, const WeightView& weight, DType dtype) {
  const DequantizeArgs args = test::dequantize_to(arena, dtype, weight);
  test::OpCase<DequantizeArgs> test{
      .name = fmt::format("dequantize {} K={} {}x{} to {}", name(weight.format), weight.bits,
                          weight.n, weight.k, name(dtype)),
      .args = args};
  // The first multiplication rounds to f32, like a cast of the oracle's value (infinity included),
  // and a scale2 that is not a power of two rounds again. The store rounds to 16 bits, half an ulp,
  // and may have a tie where the oracle has none.
  int exponent = 0;
  const bool exact =
      weight.format != WeightFormat::kKbit || std::frexp(weight.scale2, &exponent) == 0.5f;
  std::vector<double> want = dequantize_oracle(args);
  for (double& v : want) v = static_cast<double>(static_cast<float>(v));
  test.outputs = {
      {"out", args.out, want, {.ulps = (dtype == DType::kF32 ? 0 : 0.5) + (exact ? 0 : 1)}}};
  test.strided = [](DequantizeArgs& a, test::StridedCopy& copy) { copy(a.out); };
  check_op(dequantize.impls, {}, arena, test);
}

TEST(Dequantize, EveryFormatToEveryDtype) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const test::StoredAs& stored : test::kAllStored) {
      const WeightFormat format = stored.format;
      const int64_t unit = test::column_multiple(format);
      for (const int64_t columns : {1, 71, 150, 152}) {  // the last: whole runs of eight
        for (const int64_t n : {0, 1, 130}) {
          Arena arena;
          Rng rng(static_cast<uint64_t>(columns * 1000 + n));
          const DType scale = columns % 2 == 0 ? DType::kE8M0 : DType::kF32;
          const int64_t k = format == WeightFormat::kFp8Block ? columns * 15 : columns * unit;
          check_weight(arena, test::random_weight(arena, rng, stored, n, k, scale), dtype);
        }
      }
    }
  }
}

TEST(Dequantize, KbitToEveryDtype) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
      for (const int64_t blocks : {1, 3, 65}) {
        for (const int64_t n : {0, 7}) {
          Arena arena;
          Rng rng(static_cast<uint64_t>(blocks * 1000 + n * 10 + bits));
          const float scale2 = blocks == 1 ? 1.f : blocks == 3 ? 0x1p-6f : 1.0837f;
          check_weight(arena, random_kbit(arena, rng, bits, n, blocks * kKbitBlock, scale2), dtype);
        }
      }
    }
  }
}

TEST(Dequantize, SmallestAndLargestScales) {
  Arena arena;
  Rng rng(3);
  WeightView weight = test::random_weight(arena, rng, {WeightFormat::kMxfp4}, 8, 1024);
  const TensorView scales = arena.input(DType::kE8M0, {8, 32});
  for (int64_t i = 0; i < 256; ++i) scales.as<uint8_t>()[i] = static_cast<uint8_t>(i);  // NaN last
  weight.scale = scales;
  check_weight(arena, weight, DType::kF32);
}

TEST(Dequantize, RowsMayBeStrided) {
  Arena arena;
  Rng rng(4);
  const WeightView weight = random_kbit(arena, rng, 3, 6, 96, 1.f);
  const TensorView wide = arena.output(DType::kBF16, {3, 100});
  arena.prepare();
  const DequantizeArgs args{.weight = weight.rows(2, 5), .out = wide.slice(1, 2, 98)};
  dequantize({}, args);
  const std::vector<double> want = dequantize_oracle(args);
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t c = 0; c < 96; ++c) {
      EXPECT_EQ(bf16_to_f32(wide.row<uint16_t>(r)[c + 2]),
                round_to_bf16(static_cast<float>(want[static_cast<size_t>(r * 96 + c)])));
    }
    for (const int64_t c : {0, 1, 98, 99}) EXPECT_EQ(wide.row<uint16_t>(r)[c], 0xffff);
  }
}

TEST(Dequantize, ReportsErrors) {
  Arena arena;
  Rng rng(5);
  const WeightView weight = random_kbit(arena, rng, 2, 4, 64, 1.f);
  EXPECT_EQ(test::error_of([&] {
              dequantize({}, {.weight = weight, .out = arena.output(DType::kF32, {4, 32})});
            }),
            "out: want [n=4, k=64] F32|BF16|F16, got [4, 32] F32");
}

}  // namespace
}  // namespace dsv4
