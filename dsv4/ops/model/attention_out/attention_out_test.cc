#include "dsv4/ops/model/attention_out/attention_out.h"

#include "dsv4/base/error.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#endif
#include "dsv4/ops/model/attention_out/attention_out_case.h"
#include "tests/harness/op_check.h"
#include "tests/harness/weights.h"

namespace dsv4 {
namespace {

using test::Arena;

struct Shape {
  int64_t t, h, d, groups, r, out;
};

AttentionOutArgs make_args(Arena& arena, const Shape& s, const test::StoredAs& wo_a,
                           const test::StoredAs& wo_b, DType dtype) {
  Rng rng(static_cast<uint64_t>(s.t * 100 + s.h * 10 + s.out));
  AttentionOutArgs args =
      test::random_attention_out(arena, rng, {s.t, s.h, s.d, s.groups, s.out, dtype});
  args.wo_a = test::random_weight(arena, rng, wo_a, s.groups * s.r, s.h * s.d / s.groups);
  args.wo_b = test::random_weight(arena, rng, wo_b, s.out, s.groups * s.r);
  return args;
}

AttentionOutArgs one_token(const AttentionOutArgs& a, int64_t i) {
  AttentionOutArgs one = a;
  one.o = a.o.slice(0, i, i + 1);
  one.y = a.y.slice(0, i, i + 1);
  return one;
}

// Exact: two f32 sums, the errors of the first passed on by the second. Official: an f32 sum close
// to a tie changes u by a bf16 step, which may change a Q8 code by 1/8 of itself: a term of y. A
// skipped rounding of u to Q8 changes every term by about 1/40 and the cosine by more than 1e-4; a
// skipped rounding to bf16 changes most Q8 codes not at all and shows in the exact mode only.
void check_out(const Shape& shape, const test::StoredAs& wo_a, const test::StoredAs& wo_b,
               Numerics numerics, bool invariant = false) {
  Arena arena;
  const Context context{.numerics = numerics, .need_batch_invariant = invariant};
  const AttentionOutArgs args = make_args(arena, shape, wo_a, wo_b, activation_dtype(context));
  const test::Tolerance tolerance =
      numerics == Numerics::kExact ? test::Tolerance{.ulps = 4, .rel = 4e-6}
                                   : test::Tolerance{.ulps = 1.01, .rel = 0.02, .cosine = 5e-6};
  test::OpCase<AttentionOutArgs> test{
      .name = fmt::format("attention_out t={} h={} groups={} {} {} {}", shape.t, shape.h,
                          shape.groups, name(wo_a), name(wo_b), name(numerics)),
      .args = args,
      .outputs = {{"y", args.y, attention_out_oracle(context, args), tolerance}},
      .one_token = one_token,
      .num_tokens = shape.t};
  test.strided = [](AttentionOutArgs& a, test::StridedCopy& copy) { copy(a.y); };
  check_op(attention_out.impls, context, arena, test);
}

constexpr test::StoredAs kFp8{WeightFormat::kFp8Block}, kBf16{WeightFormat::kBF16};

TEST(AttentionOut, AgreesWithOracle) {
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
    for (const int64_t t : {0, 1, 5}) {
      check_out({t, 4, 64, 2, 128, 192}, kFp8, kFp8, numerics);
      check_out({t, 6, 20, 3, 36, 50}, kBf16, kBf16, numerics);
    }
    // Odd tokens and rows; clusters with several pairs of tiles.
    for (const int64_t t : {2, 6, 7, 8, 17, 33, 40, 48, 63, 64})
      check_out({t, 8, 64, 2, 256, 200}, kFp8, kFp8, numerics);
    check_out({3, 8, 64, 4, 32, 96}, kBf16, {WeightFormat::kMxfp4}, numerics);
    check_out({3, 8, 64, 1, 128, 96}, kFp8, kBf16, numerics);
  }
}

// A token alone has the bits that it has among more than a launch of few tokens has: sums of one
// rank and of four, ragged tiles, o in f16 for some of the tokens at a time.
TEST(AttentionOut, ManyTokensHaveTheBitsOfEachAlone) {
  check_out({65, 4, 64, 2, 128, 192}, kFp8, kFp8, Numerics::kOfficial, true);
  check_out({150, 8, 320, 2, 768, 200}, kFp8, kFp8, Numerics::kOfficial, true);
  check_out({1030, 2, 64, 1, 128, 72}, kFp8, kFp8, Numerics::kOfficial, true);
}

#if DSV4_CUDA
// o of at most 1,024 tokens in f16 at a time, beside u.
TEST(AttentionOut, DryRunOfMany) {
  const std::unique_ptr<Device> hopper = Device::dry_run({.name = "H", .major = 9, .num_sms = 132});
  const Context context{.need_batch_invariant = true, .device = hopper.get()};
  const auto bytes_of = [&](int64_t t) {
    Arena arena;
    const AttentionOutArgs args =
        make_args(arena, {t, 2, 64, 1, 128, 72}, kFp8, kFp8, DType::kBF16);
    EXPECT_EQ(choose(attention_out, context, args).name, "sm90_few");
    return workspace_bytes(attention_out, context, args);
  };
  const int64_t u = 128 + 1;  // bytes of a token
  EXPECT_GE(bytes_of(1024), 1024 * (2 * 128 + u));
  EXPECT_LT(bytes_of(2000), 1024 * 2 * 128 + 2000 * u + 4096);
}
#endif

TEST(AttentionOut, ReportsErrors) {
  Arena arena;
  const AttentionOutArgs good = make_args(arena, {2, 4, 16, 2, 8, 24}, kBf16, kBf16, DType::kF32);
  const auto message = [&](auto change) {
    AttentionOutArgs args = good;
    change(args);
    return test::error_of([&] { attention_out({.numerics = Numerics::kExact}, args); });
  };
  EXPECT_NE(message([](auto& a) { a.groups = 3; }).find("wo_a: 3 groups of 32 columns for 4 heads"),
            std::string::npos);
  EXPECT_NE(message([](auto& a) { a.wo_b = a.wo_a; }).find("wo_b: 32 columns for 16 rows of wo_a"),
            std::string::npos);
  EXPECT_NE(message([](auto& a) { a.o = a.o.slice(2, 0, 8); }).find("o must be contiguous"),
            std::string::npos);
}

}  // namespace
}  // namespace dsv4
