// Shapes that cuBLASLt takes: whole scale blocks, 16 tokens or more, rows wider than the GEMM. All
// other implementations of the table are tested with them too.

#include <cmath>

#include "dsv4/base/error.h"
#include "dsv4/ops/parts/linear/linear.h"
#include "dsv4/ops/parts/linear/linear_oracle.h"
#include "tests/harness/op_check.h"
#include "tests/harness/weights.h"

namespace dsv4 {
namespace {

using test::Arena;

const test::TestedElsewhere kElsewhere{"parts", "sm90_few_kbit"};

struct Shape {
  int64_t t, n, k;
};

// E4M3 activations with scales of 2^-3 .. 2^2, columns [begin, begin + k) of wider rows.
void set_x(Arena& arena, Rng& rng, DType dtype, const Shape& shape, int64_t begin,
           LinearArgs* args) {
  const TensorView x = arena.input(dtype, {shape.t, shape.k + begin});
  test::fill_normal(x, rng);
  args->x = x.slice(1, begin, begin + shape.k);
  if (dtype != DType::kE4M3) return;
  const TensorView scale = arena.input(DType::kE8M0, {shape.t, shape.k / 128});
  for (int64_t i = 0; i < scale.numel(); ++i)
    scale.as<uint8_t>()[i] = static_cast<uint8_t>(124 + rng.below(6));
  args->x_scale = scale;
}

void check_linear(WeightFormat format, DType x, DType out, DType scale, const Shape& shape) {
  Arena arena;
  Rng rng(static_cast<uint64_t>(shape.t * 1000003 + shape.n * 1009 + shape.k));
  LinearArgs args;
  set_x(arena, rng, x, shape, 0, &args);
  args.weight = test::random_weight(arena, rng, {format}, shape.n, shape.k, scale);
  args.out = arena.output(out, {shape.t, shape.n});
  const double magnitude = linear_magnitude(args);
  const double walk = 4 + std::sqrt(static_cast<double>(shape.k));
  const test::Tolerance tolerance{.ulps = out == DType::kF32 ? 2.0 : 0.51,
                                  .abs = 0x1p-24 * walk * magnitude};
  test::OpCase<LinearArgs> test{
      .name = fmt::format("{} t={} n={} k={} to {}", name(format), shape.t, shape.n, shape.k,
                          name(out)),
      .args = args,
      .outputs = {{"out", args.out, linear_oracle(args), tolerance, magnitude}}};
  test.strided = [](LinearArgs& a, test::StridedCopy& copy) {
    copy(a.x), copy(a.x_scale), copy(a.out);
  };
  check_op(linear.impls, Context{}, arena, test);
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

// wo_a reads columns of wider rows.
TEST(LinearCublasLt, RowsMayBeStrided) {
  for (const DType dtype : {DType::kBF16, DType::kE4M3}) {
    Arena arena;
    Rng rng(7);
    const Shape shape{20, 128, 256};
    LinearArgs args;
    set_x(arena, rng, dtype, shape, 128, &args);
    const bool fp8 = dtype == DType::kE4M3;
    args.weight = test::random_weight(
        arena, rng, {fp8 ? WeightFormat::kFp8Block : WeightFormat::kBF16}, shape.n, shape.k);
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
