#include "dsv4/ops/parts/norm/norm.h"

#include <cmath>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/ops/parts/norm/norm_case.h"
#include "dsv4/ops/parts/quant/quant_case.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using test::Arena;

RmsNormArgs one_row(const RmsNormArgs& a, int64_t i) {
  RmsNormArgs one = a;
  one.x = a.x.slice(0, i, i + 1);
  one.out = a.out.slice(0, i, i + 1);
  if (a.codes.rank == 0) return one;
  one.codes = a.codes.slice(0, i, i + 1);
  one.scales = a.scales.slice(0, i, i + 1);
  return one;
}

void check_rms_norm(int64_t t, int64_t d, DType x_dtype, DType weight_dtype, DType out_dtype) {
  Arena arena;
  Rng rng(static_cast<uint64_t>(t * 1000 + d));
  const RmsNormArgs args =
      test::random_rms_norm(arena, rng, t, d, x_dtype, weight_dtype, out_dtype);
  test::OpCase<RmsNormArgs> test{
      .name = fmt::format("rms_norm {}x{}", t, d), .args = args, .num_tokens = t};
  // f32: vector sums of squares have a few roundings, the scalar instruction set up to d / 4 of
  // them (about sqrt(d / 4) ulps); the multiplications add two.
  const double ulps = out_dtype == DType::kF32 ? 8.0 + std::sqrt(static_cast<double>(d)) : 0.51;
  test.outputs = {{"out", args.out, rms_norm_oracle(args), {.ulps = ulps}}};
  test.one_token = one_row;
  test.strided = [](RmsNormArgs& a, test::StridedCopy& copy) { copy(a.x), copy(a.out); };
  check_op(rms_norm.impls, Context{}, arena, test);
}

TEST(RmsNorm, AgreesWithOracle) {
  for (const int64_t d : {1, 3, 16, 127, 512, 4096}) {
    for (const int64_t t : {0, 1, 5}) {
      check_rms_norm(t, d, DType::kF32, DType::kF32, DType::kF32);
      check_rms_norm(t, d, DType::kBF16, DType::kBF16, DType::kBF16);
      check_rms_norm(t, d, DType::kBF16, DType::kF32, DType::kF32);
    }
  }
}

// out is what it is without codes, and codes are those of quantize_q8.
void check_codes(int64_t t, int64_t d, DType dtype) {
  Arena arena;
  Rng rng(static_cast<uint64_t>(t * 1000 + d));
  RmsNormArgs args = test::random_rms_norm(arena, rng, t, d, dtype, DType::kF32, dtype);
  args.codes = arena.output(DType::kE4M3, {t, d});
  args.scales = arena.output(DType::kE8M0, {t, ceil_div(d, 128)});
  RmsNormArgs plain = args;
  plain.codes = {}, plain.scales = {};
  test::OpCase<RmsNormArgs> test{
      .name = fmt::format("rms_norm with codes {}x{}", t, d), .args = args, .num_tokens = t};
  test.one_token = one_row;
  test.strided = [](RmsNormArgs& a, test::StridedCopy& copy) {
    copy(a.x), copy(a.out), copy(a.codes), copy(a.scales);
  };
  check_op(rms_norm.impls, Context{}, arena, test);
  for (const Impl<RmsNormArgs>& impl : rms_norm.impls) {
    Context context;
    if (impl.arch != Arch::kCpu) context.device = test::gpu();
    if (!reaches(impl.arch, context)) continue;
    SCOPED_TRACE(test.name + " by " + std::string(impl.name));
    const auto out_of = [&](const RmsNormArgs& call) {
      arena.prepare();
      impl.run(context, call);
      if (context.device != nullptr) test::wait(*context.device);
      return std::vector<std::byte>(args.out.data, args.out.data + args.out.bytes());
    };
    const std::vector<std::byte> without = out_of(plain);
    EXPECT_TRUE(out_of(args) == without);
    const QuantizeQ8Want want =
        quantize_q8_oracle({.x = args.out, .codes = args.codes, .scales = args.scales});
    EXPECT_EQ(test::compare(args.codes, want.codes, {.ulps = 0}), "");
    EXPECT_EQ(test::compare(args.scales, want.scales, {.ulps = 0}), "");
  }
}

TEST(RmsNorm, MakesCodes) {
  for (const int64_t d : {100, 256, 384, 1536, 4096}) {
    for (const int64_t t : {0, 1, 7}) {
      check_codes(t, d, DType::kBF16);
      check_codes(t, d, DType::kF32);
    }
  }
}

TEST(HeadNorm, AgreesWithOracle) {
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
    for (const int64_t d : {16, 100, 512}) {
      for (const int64_t rows : {0, 1, 6}) {
        Arena arena;
        Rng rng(static_cast<uint64_t>(d + rows));
        const DType dtype = numerics == Numerics::kOfficial ? DType::kBF16 : DType::kF32;
        const HeadNormArgs args = test::random_head_norm(arena, rng, rows, d, dtype);
        const Context context{.numerics = numerics};
        test::OpCase<HeadNormArgs> test{
            .name = fmt::format("head_norm {}x{}", rows, d), .args = args, .num_tokens = rows};
        test.outputs = {{"out",
                         args.out,
                         head_norm_oracle(context, args),
                         {.ulps = dtype == DType::kF32 ? 8.0 : 1.01}}};
        test.one_token = [](const HeadNormArgs& a, int64_t i) {
          return HeadNormArgs{
              .x = a.x.slice(0, i, i + 1), .out = a.out.slice(0, i, i + 1), .eps = a.eps};
        };
        test.strided = [](HeadNormArgs& a, test::StridedCopy& copy) { copy(a.x), copy(a.out); };
        check_op(head_norm.impls, context, arena, test);
      }
    }
  }
}

TEST(RmsNorm, ReportsErrors) {
  Arena arena;
  const RmsNormArgs args{.x = arena.input(DType::kF32, {2, 8}),
                         .weight = arena.input(DType::kF32, {7}),
                         .out = arena.output(DType::kF32, {2, 8})};
  EXPECT_EQ(test::error_of([&] { rms_norm(Context{}, args); }),
            "weight: want [d=8] F32|BF16, got [7] F32");
}

}  // namespace
}  // namespace dsv4
