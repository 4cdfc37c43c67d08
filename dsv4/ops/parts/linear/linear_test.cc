#include "dsv4/ops/parts/linear/linear.h"

#include <cmath>
#include <cstring>

#include "dsv4/base/error.h"
#include "dsv4/formats/float16.h"
#include "dsv4/ops/parts/linear/linear_check_test.h"

namespace dsv4 {
namespace {

using test::Arena;
using test::tokens;

// Shapes of whole scale blocks are in linear_cublaslt_test.cc.
const test::TestedElsewhere kElsewhere{"cublaslt",     "cublaslt_fp8",  "cublaslt_dequantized",
                                       "cublaslt_any", "parts",         "sm90_few_kbit",
                                       "sm90_many",    "sm90_kbit_wide"};

struct Shape {
  int64_t t, n, k;
};

struct Dtypes {
  DType x = DType::kF32, out = DType::kF32, fp8_scale = DType::kE8M0;
  int64_t groups = 1;  // n and k of the shape are those of one group
};

LinearArgs random_args(Arena& arena, Rng& rng, const test::StoredAs& stored, const Shape& shape,
                       const Dtypes& dtypes) {
  const int64_t groups = dtypes.groups;
  return test::random_linear(
      arena, rng, {.t = shape.t, .x = dtypes.x, .out = dtypes.out, .groups = groups},
      test::random_weight(arena, rng, stored, groups * shape.n, shape.k, dtypes.fp8_scale));
}

void check_linear(const test::StoredAs& stored, const Shape& shape, const Dtypes& dtypes) {
  Arena arena;
  Rng rng(static_cast<uint64_t>(shape.t * 1000003 + shape.n * 1009 + shape.k));
  const LinearArgs args = random_args(arena, rng, stored, shape, dtypes);
  test::check_linear(arena, args, fmt::format("{} x {}", name(stored), name(dtypes.x)));
}

TEST(Linear, AgreesWithOracleOnAnyShape) {
  for (const test::StoredAs& stored : test::kAllStored) {
    const int64_t m = test::column_multiple(stored.format);
    for (const Shape& s : {Shape{0, 3, 64},
                           {1, 1, 1},
                           {2, 5, 3},
                           {3, 130, 40},
                           {5, 17, 127},
                           {9, 66, 200},
                           {1, 257, 1300},
                           {4, 9, 2100},
                           {7, 0, 32},
                           {1, 1100, 200},
                           {5, 300, 256},
                           {3, 12, 768},
                           {6, 10, 800}}) {
      check_linear(stored, {s.t, s.n, align_up(s.k, m)}, {});
    }
  }
}

TEST(Linear, AgreesWithOracleOnAnyDtype) {
  for (const test::StoredAs& stored : test::kAllStored) {
    for (const DType x : {DType::kF32, DType::kBF16, DType::kF16, DType::kE4M3}) {
      for (const DType out : {DType::kF32, DType::kBF16, DType::kF16}) {
        check_linear(stored, {4, 20, 352}, {.x = x, .out = out});
      }
    }
  }
  check_linear({WeightFormat::kFp8Block}, {5, 140, 1200}, {.fp8_scale = DType::kF32});
}

// Shapes for the fast kernels: every tile size, several chunks of columns, few and many rows.
TEST(Linear, AgreesWithOracleOnAlignedShapes) {
  for (const test::StoredAs& stored : test::kAllStored) {
    for (const Shape& s : {Shape{1, 256, 1024},
                           {2, 36, 4608},
                           {3, 130, 512},
                           {8, 64, 4224},
                           {9, 128, 256},
                           {17, 68, 512},
                           {64, 36, 384},
                           {130, 72, 320}}) {
      check_linear(stored, s, {.x = DType::kE4M3, .out = DType::kBF16});
      check_linear(stored, s, {.x = DType::kBF16});
      check_linear(stored, s, {.x = DType::kF16, .out = DType::kF16});
      if (s.t <= 9) check_linear(stored, s, {});
    }
  }
}

// Small, so that racecheck finishes: tiles of 8, 32, 64 and 128 tokens, with a ragged last step.
TEST(Linear, EveryTensorCoreTile) {
  for (const test::StoredAs& stored : {test::StoredAs{WeightFormat::kBF16},
                                       {WeightFormat::kFp8Block},
                                       {WeightFormat::kMxfp4},
                                       {WeightFormat::kKbit, 3}}) {
    for (const int64_t t : {6, 20, 50, 90}) {
      check_linear(stored, {t, 36, 160}, {.x = DType::kE4M3, .out = DType::kBF16});
      if (stored.bits > 0) check_linear(stored, {t, 36, 160}, {.x = DType::kF16});
    }
  }
}

// Column block g of x and out, row block g of the weight.
TEST(Linear, GroupsAgreeWithOracle) {
  for (const test::StoredAs& stored : test::kAllStored) {
    for (const DType x : {DType::kF32, DType::kBF16, DType::kE4M3}) {
      check_linear(stored, {3, 128, 160}, {.x = x, .out = DType::kBF16, .groups = 3});
    }
    if (stored.format != WeightFormat::kFp8Block) check_linear(stored, {9, 5, 32}, {.groups = 4});
  }
}

// Any chunking of a prompt gives the bits of one call. 400 tokens span several work units.
TEST(Linear, BitsDoNotDependOnTheChunk) {
  for (const test::StoredAs& stored : test::kAllStored) {
    Arena arena;
    Rng rng(77);
    const LinearArgs args = random_args(arena, rng, stored, {400, 19, 1120}, {});
    arena.freeze();
    const auto run = [&](int64_t chunk) {
      arena.prepare();
      for (int64_t t = 0; t < 400; t += chunk) {
        linear(Context{}, tokens(args, t, std::min<int64_t>(400, t + chunk)));
      }
      arena.verify();
      return arena.written();
    };
    const auto whole = run(400);
    for (const int64_t chunk : {1, 2, 3, 5, 8, 17, 64, 193}) {
      EXPECT_TRUE(whole == run(chunk)) << name(stored) << " in chunks of " << chunk;
    }
  }
}

// wo_a reads and writes columns of wider rows, one group of heads at a time.
TEST(Linear, RowsMayBeStrided) {
  Arena arena;
  Rng rng(5);
  const LinearArgs args = random_args(arena, rng, {WeightFormat::kBF16}, {6, 24, 96}, {});
  const TensorView wide_x = arena.input(DType::kF32, {6, 200});
  const TensorView wide_out = arena.output(DType::kF32, {6, 72});
  for (int64_t t = 0; t < 6; ++t) {
    std::copy_n(args.x.row<float>(t), 96, wide_x.row<float>(t) + 100);
  }
  LinearArgs strided = args;
  strided.x = wide_x.slice(1, 100, 196);
  strided.out = wide_out.slice(1, 30, 54);
  arena.freeze();
  arena.prepare();
  linear(Context{}, args);
  linear(Context{}, strided);
  arena.verify();
  for (int64_t t = 0; t < 6; ++t) {
    for (int64_t i = 0; i < 72; ++i) {
      const float got = wide_out.row<float>(t)[i];
      if (i >= 30 && i < 54) {
        EXPECT_EQ(got, args.out.row<float>(t)[i - 30]);
      } else {
        EXPECT_TRUE(std::isnan(got)) << "wrote outside its columns";  // still poisoned
      }
    }
  }
}

TEST(Linear, TakesRowsOfALargerWeight) {
  Arena arena;
  Rng rng(6);
  for (const test::StoredAs& stored : test::kAllStored) {
    LinearArgs args = random_args(arena, rng, stored, {2, 300, 160}, {});
    linear(Context{}, args);
    LinearArgs part = args;
    part.weight = args.weight.rows(128, 256);
    part.out = arena.output(DType::kF32, {2, 128});
    linear(Context{}, part);
    for (int64_t t = 0; t < 2; ++t) {
      for (int64_t i = 0; i < 128; ++i) {
        EXPECT_EQ(part.out.row<float>(t)[i], args.out.row<float>(t)[128 + i]) << name(stored);
      }
    }
  }
}

// A NaN weight, scale or activation makes its outputs NaN, and no others. A k-bit weight has no
// NaN.
TEST(Linear, NanAffectsOnlyItsOutputs) {
  for (const test::StoredAs& stored : test::kAllStored) {
    for (const int64_t t : {1, 6}) {
      Arena arena;
      Rng rng(8);
      const LinearArgs args = random_args(arena, rng, stored, {t, 21, 1184}, {});
      const WeightView& w = args.weight;
      const auto byte = [](const ConstTensorView& view, int64_t row, int64_t i) {
        return const_cast<uint8_t*>(reinterpret_cast<const uint8_t*>(view.data)) +
               row * view.row_stride() * item_bytes(view.dtype) + i;
      };
      const WeightFormat format = stored.format;
      const bool fp4 = format == WeightFormat::kMxfp4 || format == WeightFormat::kNvfp4;
      const ConstTensorView& poisoned = fp4 ? w.scale : w.data;
      for (const int64_t row : {3, 20}) {
        if (format == WeightFormat::kKbit) break;
        // low and high bytes: 0xff7f, 0xffff are NaNs all over
        const int64_t last = poisoned.dim(1) * item_bytes(poisoned.dtype) - 1;
        for (int64_t i = std::max<int64_t>(0, last - 3); i <= last; ++i) {
          *byte(poisoned, row, i) = row == 3 && format == WeightFormat::kFp8Block ? 0x7f : 0xff;
        }
      }
      if (t > 2) const_cast<float*>(args.x.row<float>(2))[7] = NAN;
      arena.freeze();
      test::OpCase<LinearArgs> test{
          .name = name(stored),
          .args = args,
          .outputs =
              {{"out", args.out, linear_oracle(args), {.abs = 1e-3}, linear_magnitude(args)}},
          .one_token = [](const LinearArgs& a, int64_t i) { return tokens(a, i, i + 1); },
          .num_tokens = t};
      test.strided = [](LinearArgs& a, test::StridedCopy& copy) {
        copy(a.x), copy(a.x_scale), copy(a.out);
      };
      check_op(linear.impls, Context{}, arena, test);
    }
  }
}

// An MXFP4 weight as K = 4 with the e2m1/8 codebook: code 8 + m is the magnitude m, code 7 - m its
// negative, and a scale of 2^(b - 127) becomes one of 2^(b - 124).
WeightView kbit_image(Arena& arena, const WeightView& mxfp4) {
  const int64_t blocks = mxfp4.k / kKbitBlock;
  const TensorView planes = arena.input(DType::kI32, {mxfp4.n, blocks * 4});
  const TensorView scale = arena.input(DType::kU8, {mxfp4.n, blocks});
  const TensorView codebook = arena.input(DType::kF32, {16});
  const Codebook book = e2m1_codebook();
  std::copy(book.values().begin(), book.values().end(), codebook.as<float>());
  for (int64_t b = 0; b < mxfp4.n * blocks; ++b) {
    uint8_t codes[kKbitBlock];
    for (int i = 0; i < kKbitBlock; ++i) {
      const int code = mxfp4.data.as<uint8_t>()[b * 16 + i / 2] >> (i % 2 * 4) & 15;
      codes[i] = static_cast<uint8_t>(code < 8 ? 8 + code : 15 - code);
    }
    pack_kbit_block(codes, 4, planes.as<uint32_t>() + b * 4);
    const int exponent = mxfp4.scale.as<uint8_t>()[b] - 124;
    scale.as<uint8_t>()[b] = f32_to_e4m4(std::ldexp(1.f, exponent));
  }
  WeightView kbit{.format = WeightFormat::kKbit, .n = mxfp4.n, .k = mxfp4.k, .bits = 4};
  kbit.data = planes, kbit.scale = scale, kbit.codebook = codebook;
  return kbit;
}

TEST(Linear, LosslessImageOfMxfp4GivesTheSameBits) {
  for (const int64_t k : {32, 96, 256, 544, 1024, 1312}) {
    for (const int64_t t : {1, 2, 3, 4, 7, 200}) {
      Arena arena;
      Rng rng(static_cast<uint64_t>(t * 10007 + k));
      const LinearArgs mxfp4 = random_args(arena, rng, {WeightFormat::kMxfp4}, {t, 21, k}, {});
      for (int64_t i = 0; i < mxfp4.weight.scale.numel(); ++i) {  // 2^-17 .. 2^1, subnormal as e4m4
        const_cast<uint8_t*>(mxfp4.weight.scale.as<uint8_t>())[i] =
            static_cast<uint8_t>(110 + rng.below(19));
      }
      LinearArgs kbit = mxfp4;
      kbit.weight = kbit_image(arena, mxfp4.weight);
      kbit.out = arena.output(DType::kF32, {t, 21});
      for (int64_t i = 0; i < 21 * k; ++i) {
        ASSERT_EQ(weight_value(mxfp4.weight, i / k, i % k),
                  weight_value(kbit.weight, i / k, i % k));
      }
      linear(Context{}, mxfp4);
      linear(Context{}, kbit);
      EXPECT_EQ(std::memcmp(mxfp4.out.data, kbit.out.data, static_cast<size_t>(mxfp4.out.bytes())),
                0)
          << "t=" << t << " k=" << k;
    }
  }
}

TEST(LinearCheck, ReportsErrors) {
  Arena arena;
  Rng rng(1);
  LinearArgs args = random_args(arena, rng, {WeightFormat::kMxfp4}, {2, 8, 64}, {});
  args.out = arena.output(DType::kF32, {2, 9});
  EXPECT_EQ(test::error_of([&] { linear(Context{}, args); }),
            "out: want [t=2, n=8] F32|BF16|F16, got [2, 9] F32");
  args = random_args(arena, rng, {WeightFormat::kF32}, {2, 8, 64}, {.x = DType::kE4M3});
  args.x_scale = args.x_scale.slice(0, 0, 1);
  EXPECT_EQ(test::error_of([&] { linear(Context{}, args); }),
            "x_scale: want [t=2, 1] F8_E8M0, got [1, 1] F8_E8M0");
  args = random_args(arena, rng, {WeightFormat::kMxfp4}, {2, 8, 64}, {});
  args.weight.k = 48;
  EXPECT_NE(test::error_of([&] { linear(Context{}, args); }).find("multiple of 32"),
            std::string::npos);
  args = random_args(arena, rng, {WeightFormat::kFp8Block}, {2, 64, 64}, {.groups = 2});
  EXPECT_NE(test::error_of([&] { linear(Context{}, args); }).find("64 rows a group cut"),
            std::string::npos);
  args = random_args(arena, rng, {WeightFormat::kMxfp4}, {2, 8, 64}, {.x = DType::kF16});
  args.quantize_x = true;
  EXPECT_NE(
      test::error_of([&] { linear(Context{}, args); }).find("x: [2, 64] F16 is not quantized"),
      std::string::npos);
  args = random_args(arena, rng, {WeightFormat::kBF16}, {2, 8, 64}, {.groups = 2});
  args.groups = 3;
  EXPECT_NE(test::error_of([&] { linear(Context{}, args); }).find("weight: 16 rows in 3 groups"),
            std::string::npos);
}

}  // namespace
}  // namespace dsv4
