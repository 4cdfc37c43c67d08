// Shapes that cuBLASLt takes: whole scale blocks, 16 tokens or more, rows wider than the GEMM. All
// other implementations of the table are tested with them too.

#include <cmath>

#include "dsv4/base/error.h"
#include "dsv4/ops/parts/linear/linear.h"
#include "dsv4/ops/parts/linear/linear_check_test.h"

namespace dsv4 {
namespace {

using test::Arena;

const test::TestedElsewhere kElsewhere{"sm90_many", "parts", "sm90_few_kbit", "cuda_kbit",
                                       "sm90_kbit_wide"};

struct Shape {
  int64_t t, n, k;
};

void check_linear(WeightFormat format, DType x, DType out, DType scale, const Shape& shape) {
  Arena arena;
  Rng rng(static_cast<uint64_t>(shape.t * 1000003 + shape.n * 1009 + shape.k));
  const WeightView weight = test::random_weight(arena, rng, {format}, shape.n, shape.k, scale);
  const LinearArgs args =
      test::random_linear(arena, rng, {.t = shape.t, .x = x, .out = out}, weight);
  test::check_linear(arena, args, fmt::format("{} x {}", name(format), name(x)));
}

TEST(LinearCublasLt, AgreesWithOracle) {
  for (const Shape& shape :
       {Shape{16, 128, 128}, {17, 256, 640}, {36, 384, 1024}, {130, 128, 256}}) {
    for (const DType out : {DType::kF32, DType::kBF16}) {
      check_linear(WeightFormat::kBF16, DType::kBF16, out, DType::kE8M0, shape);
      for (const DType scale : {DType::kE8M0, DType::kF32})
        check_linear(WeightFormat::kFp8Block, DType::kE4M3, out, scale, shape);
    }
  }
}

// bf16 activations times FP8 blocks: enough tokens to write the weight as bf16 first.
TEST(LinearCublasLt, DequantizedWeightsAgreeWithOracle) {
  for (const DType out : {DType::kF32, DType::kBF16})
    check_linear(WeightFormat::kFp8Block, DType::kBF16, out, DType::kE8M0, {260, 256, 384});
}

// k-bit weights of any codebook, in the type of the activations.
TEST(LinearCublasLt, DequantizedKbitWeightsAgreeWithOracle) {
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      Arena arena;
      Rng rng(static_cast<uint64_t>(bits));
      const WeightView weight =
          test::random_weight(arena, rng, {WeightFormat::kKbit, bits}, 256, 384);
      const LinearArgs args =
          test::random_linear(arena, rng, {.t = 260, .x = dtype, .out = dtype}, weight);
      test::check_linear(arena, args, fmt::format("k{} x {}", bits, name(dtype)));
    }
  }
}

// wo_a reads columns of wider rows.
TEST(LinearCublasLt, RowsMayBeStrided) {
  for (const DType dtype : {DType::kBF16, DType::kE4M3}) {
    Arena arena;
    Rng rng(7);
    const Shape shape{20, 128, 256};
    const WeightFormat format =
        dtype == DType::kE4M3 ? WeightFormat::kFp8Block : WeightFormat::kBF16;
    LinearArgs args =
        test::random_linear(arena, rng, {.t = shape.t, .x = dtype, .first = 128},
                            test::random_weight(arena, rng, {format}, shape.n, shape.k));
    const TensorView wide = arena.output(DType::kF32, {shape.t, 2 * shape.n});
    const TensorView dense = arena.output(DType::kF32, {shape.t, shape.n});
    arena.freeze();
    for (const Impl<LinearArgs>& row : linear.impls) {
      Context context;
      if (row.arch != Arch::kCpu) context.device = test::gpu();
      if (!reaches(row.arch, context)) continue;
      const auto run = [&](const TensorView& out) {
        args.out = out;
        if (row.reject(context, args) != nullptr) return false;
        row.run(context, args);
        if (context.device != nullptr) test::wait(*context.device);
        return true;
      };
      arena.prepare();
      if (!run(wide.slice(1, shape.n, 2 * shape.n)) || !run(dense)) continue;
      arena.verify();
      for (int64_t i = 0; i < shape.t * shape.n; ++i) {
        const float* got = wide.row<float>(i / shape.n);
        EXPECT_TRUE(std::isnan(got[i % shape.n])) << row.name << " wrote outside its columns";
        // cuBLASLt may choose another algorithm for other strides.
        EXPECT_NEAR(got[shape.n + i % shape.n], dense.as<float>()[i], 1e-2f) << row.name;
      }
    }
  }
}

}  // namespace
}  // namespace dsv4
