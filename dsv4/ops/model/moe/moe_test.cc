#include "dsv4/ops/model/moe/moe.h"

#include <cmath>

#include "dsv4/base/error.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#endif
#include "dsv4/ops/model/hc_boundary/boundary_inside_test.h"
#include "dsv4/ops/model/moe/moe_case.h"
#include "dsv4/ops/model/moe/random_moe_test.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using test::StoredAs;

using Shape = test::MoeShape;
using Case = test::MoeCase;
using test::fill_case, test::fill_images;

MoeArgs one_token(const MoeArgs& a, int64_t i) {
  MoeArgs one = a;
  if (is_given(a.boundary)) one.boundary = test::one_token(a.boundary, i);
  one.x = a.x.slice(0, i, i + 1);
  one.ids = a.ids.slice(0, i, i + 1);
  one.acc = a.acc.slice(0, i, i + 1);
  return one;
}

// oracle: acc by moe_oracle(). The bounds of the experts' test, those of FP8 tensor cores for a
// shared expert in FP8; the logits add a relative error of about 1e-6 to the weights. No two keys
// of the router are so close that this changes a choice.
void check_case(const std::string& name, const Context& context, Case& c,
                const std::vector<double>& oracle) {
  // `parts` may round a k-bit shared expert to bf16.
  const double cosine = c.shared[0].w1.format == WeightFormat::kKbit ? 5e-5 : 2e-5;
  const test::Tolerance tolerance = context.numerics == Numerics::kExact
                                        ? test::Tolerance{.ulps = 4, .rel = 8e-6}
                                        : test::Tolerance{.rel = 0.02, .cosine = cosine};
  test::OpCase<MoeArgs> test{.name = name,
                             .args = c.args,
                             .outputs = {{"acc", c.args.acc, oracle, tolerance}},
                             .one_token = one_token,
                             .num_tokens = c.args.x.dim(0)};
  test.strided = [](MoeArgs& a, test::StridedCopy& copy) { copy(a.x), copy(a.acc); };
  check_op(moe.impls, context, c.arena, test);
}

void check_moe(const Shape& shape, const StoredAs& stored, const StoredAs& shared,
               Numerics numerics, bool invariant = false) {
  const Context context{.numerics = numerics, .need_batch_invariant = invariant};
  Case c;
  fill_case(c, shape, stored, shared, activation_dtype(context));
  check_case(fmt::format("moe {} t={} e={} k={} {}", name(stored), shape.t, shape.e, shape.k,
                         name(numerics)),
             context, c, moe_oracle(context, c.args));
}

TEST(Moe, AgreesWithOracle) {
  const StoredAs mxfp4{WeightFormat::kMxfp4}, fp8{WeightFormat::kFp8Block},
      k4{WeightFormat::kKbit, 4};
  for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
    for (const bool hash : {false, true}) {
      for (const int64_t t : {0, 1, 7}) check_moe({t, 128, 6, 2, 64, hash}, mxfp4, fp8, numerics);
    }
    check_moe({3, 96, 5, 3, 160, false, false}, {WeightFormat::kBF16}, {WeightFormat::kBF16},
              numerics);
    if (numerics == Numerics::kExact) check_moe({9, 256, 8, 6, 128}, k4, fp8, numerics);
  }
}

void check_few_tokens(const Shape& shape) {
  check_moe(shape, {WeightFormat::kMxfp4}, {WeightFormat::kFp8Block}, Numerics::kOfficial);
}

// For sm90_few: tiles of 8, 16 and 32 tokens, and more than one of them.
TEST(Moe, FewTokens) {
  for (const int64_t t : {1, 2, 8, 9, 33, 48, 63, 64, 65}) check_few_tokens({t, 384, 20, 6, 64});
}

// More tokens than launches of few tokens have, with sums of one rank and of four.
TEST(Moe, ManyTokensHaveTheBitsOfEachAlone) {
  for (const int64_t d : {384, 1152})
    check_moe({150, d, 20, 6, 64}, {WeightFormat::kMxfp4}, {WeightFormat::kFp8Block},
              Numerics::kOfficial, true);
  check_moe({131, 256, 6, 2, 1280}, {WeightFormat::kMxfp4}, {WeightFormat::kFp8Block},
            Numerics::kOfficial, true);
}

// 1, 2, 4 and 8 ranks; 8 and 12 experts a lane.
TEST(Moe, FewTokensOfOtherShapes) {
  for (const int64_t d : {128, 256, 640, 1408}) check_few_tokens({3, d, 20, 3, 192});
  check_few_tokens({4, 256, 300, 8, 64});
  check_few_tokens({19, 256, 384, 6, 64, true});
}

constexpr StoredAs kKbit4{WeightFormat::kKbit, 4, true}, kKbit5{WeightFormat::kKbit, 5, true};

// For sm90_few: tiles of 2 and 8 tokens, 1 to 8 ranks; more tokens than it takes.
TEST(Moe, SharedExpertOfBitPlanes) {
  for (const int64_t t : {1, 2, 3, 8, 9})
    check_moe({t, 512, 20, 6, 128}, {WeightFormat::kMxfp4}, kKbit5, Numerics::kOfficial);
  for (const int64_t d : {256, 768, 2560})
    check_moe({2, d, 300, 8, 384}, {WeightFormat::kMxfp4}, kKbit4, Numerics::kOfficial);
  check_moe({5, 1024, 20, 6, 256, true}, {WeightFormat::kMxfp4}, kKbit5, Numerics::kOfficial);
  check_moe({1, 4096, 3, 2, 1024}, {WeightFormat::kMxfp4}, kKbit5, Numerics::kOfficial);
}

TEST(Moe, FewTokensOfFlashWidth) {
  check_few_tokens({2, 4096, 3, 2, 1024});
}

void check_images(const Shape& shape, const test::ImageSource& up, const test::ImageSource& down,
                  const StoredAs& shared = {WeightFormat::kFp8Block}) {
  Case c;
  const MoeArgs file = fill_images(c, shape, up, down, shared);
  check_case(fmt::format("moe images {} t={} d={} e={} k={} {}", name(up), shape.t, shape.d,
                         shape.e, shape.k, name(shared)),
             {}, c, moe_oracle({}, file));
}

// For sm90_fused; the third has more tokens than it takes.
TEST(Moe, Images) {
  if (test::gpu_capability().major != 9) GTEST_SKIP() << "kernel images are read on Hopper";
  for (const int64_t t : {1, 2, 3}) check_images({t, 384, 20, 6, 64}, 3, 3);
  check_images({1, 128, 256, 6, 256}, 2, 4);
  check_images({2, 256, 384, 8, 192}, 4, 2);
  for (const int64_t t : {1, 2}) check_images({t, 256, 6, 6, 64, true}, 3, 3);
  check_images({2, 128, 9, 6, 320}, 3, 3);
}

constexpr WeightFormat kFp4[] = {WeightFormat::kMxfp4, WeightFormat::kNvfp4};

TEST(Moe, Fp4Images) {
  if (test::gpu_capability().major != 9) GTEST_SKIP() << "kernel images are read on Hopper";
  for (const WeightFormat fp4 : kFp4) {
    for (const int64_t t : {1, 2, 3}) check_images({t, 384, 20, 6, 64}, fp4, fp4);
    for (const int64_t t : {1, 2}) check_images({t, 256, 6, 6, 64, true}, fp4, fp4);
    check_images({2, 256, 384, 8, 192}, fp4, 2);
    check_images({1, 512, 20, 6, 128}, fp4, fp4, kKbit5);
    for (const int64_t t : {1, 2}) check_images({t, 4096, 5, 4, 1024}, fp4, fp4);
  }
}

TEST(Moe, ImagesBesideBitPlanes) {
  if (test::gpu_capability().major != 9) GTEST_SKIP() << "kernel images are read on Hopper";
  for (const int64_t t : {1, 2, 3}) check_images({t, 512, 20, 6, 128}, 3, 3, kKbit5);
  check_images({1, 256, 256, 6, 1024}, 2, 4, kKbit4);
  check_images({2, 4096, 5, 4, 1024}, 3, 3, kKbit5);
}

TEST(Moe, ImagesOfFlashWidth) {
  if (test::gpu_capability().major != 9) GTEST_SKIP() << "kernel images are read on Hopper";
  for (const int64_t t : {1, 2}) check_images({t, 4096, 5, 4, 1024}, 3, 3);
}

#if DSV4_CUDA
// One token of experts in kernel images; with two sm90_few is as fast.
TEST(Moe, DryRunOfFused) {
  const std::unique_ptr<Device> hopper = Device::dry_run({.name = "H", .major = 9, .num_sms = 132});
  const Context context{.device = hopper.get()};
  for (const int64_t t : {1, 2, 3}) {
    Case c;
    fill_images(c, {t, 384, 20, 6, 64}, 3, 3);
    EXPECT_EQ(choose(moe, context, c.args).name, t == 1 ? "sm90_fused" : "sm90_few") << t;
    for (const WeightFormat fp4 : kFp4) {
      Case stored;
      fill_images(stored, {t, 384, 20, 6, 64}, fp4, fp4);
      EXPECT_EQ(choose(moe, context, stored.args).name, t == 1 ? "sm90_fused" : "sm90_few") << t;
    }
    Case planes;
    fill_images(planes, {t, 512, 20, 6, 128}, 3, 3, kKbit5);
    EXPECT_EQ(choose(moe, context, planes.args).name, t == 1 ? "sm90_fused" : "sm90_few") << t;
  }
}
#endif

#if DSV4_CUDA
// Temporaries of many tokens: gate and up of the shared expert.
TEST(Moe, DryRunOfMany) {
  const std::unique_ptr<Device> hopper = Device::dry_run({.name = "H", .major = 9, .num_sms = 132});
  const Context context{.need_batch_invariant = true, .device = hopper.get()};
  for (const int64_t t : {65, 129, 300}) {
    Case c;
    fill_images(c, {t, 384, 20, 6, 128}, 3, 3);
    EXPECT_EQ(choose(moe, context, c.args).name, "sm90_few") << t;
    EXPECT_GT(workspace_bytes(moe, context, c.args), t * 2 * (3 * 256)) << t;
  }
}
#endif

// A token has the same bits in a step of one or two tokens and in a larger one.
void check_bits_of_fused(int64_t t, const StoredAs& shared, const test::ImageSource& routed = 3) {
  Case c;
  fill_images(c, {t, 4096, 12, 6, 1024}, routed, routed, shared);
  const auto bits_of = [&](std::string_view impl) {
    c.arena.prepare();
    moe({.force_impl = impl, .device = test::gpu()}, c.args);
    test::wait(*test::gpu());
    return c.arena.written();
  };
  c.arena.freeze();
  EXPECT_TRUE(bits_of("sm90_few") == bits_of("sm90_fused")) << t;
}

TEST(Moe, FusedHasTheBitsOfFew) {
  if (test::gpu_capability().major != 9) GTEST_SKIP() << "for Hopper";
  for (const int64_t t : {1, 2}) {
    check_bits_of_fused(t, {WeightFormat::kFp8Block});
    check_bits_of_fused(t, kKbit5);
    for (const WeightFormat fp4 : kFp4) check_bits_of_fused(t, {WeightFormat::kFp8Block}, fp4);
  }
}

// The last has more tokens than the products finish a boundary for.
void check_boundary(Case& c) {
  const int64_t t = c.args.x.dim(0), d = c.args.x.dim(1);
  Rng rng(static_cast<uint64_t>(t));
  c.args.boundary = test::random_boundary(c.arena, rng, {.t = t, .d = d});
  c.args.x = c.args.boundary.x;
  check_boundary_inside(moe.impls, Context{}, c.arena,
                        {.name = fmt::format("moe t={} boundary", t),
                         .args = c.args,
                         .one_token = one_token,
                         .num_tokens = t});
}

TEST(Moe, BoundaryInside) {
  for (const int64_t t : {2, 6}) {
    Case c;
    fill_case(c, {t, 1024, 20, 3, 64}, {WeightFormat::kMxfp4}, {WeightFormat::kFp8Block},
              DType::kBF16);
    check_boundary(c);
  }
}

TEST(Moe, BoundaryInsideWithBitPlanes) {
  for (const int64_t t : {1, 4, 6}) {
    Case c;
    fill_case(c, {t, 2048, 20, 3, 128}, {WeightFormat::kMxfp4}, t == 4 ? kKbit4 : kKbit5,
              DType::kBF16);
    check_boundary(c);
  }
}

TEST(Moe, BoundaryInsideWithImages) {
  if (test::gpu_capability().major != 9) GTEST_SKIP() << "kernel images are read on Hopper";
  Case c;
  fill_images(c, {2, 1024, 20, 3, 64}, 3, 3);
  check_boundary(c);
}

TEST(Moe, ReportsErrors) {
  Case c;
  fill_case(c, {2, 32, 4, 2, 32}, {WeightFormat::kBF16}, {WeightFormat::kBF16}, DType::kF32);
  Scratch scratch;
  const auto message = [&](auto change) {
    MoeArgs args = c.args;
    change(args);
    return test::error_of([&] { moe(Context{.workspace = &scratch}, args); });
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(message([](auto& a) { a.experts_per_token = 5; }), "top-5 of 4 experts"));
  EXPECT_TRUE(has(message([](auto& a) { a.routed = a.routed.file().first(3); }),
                  "gate: 4 rows for 3 experts"));
  EXPECT_TRUE(has(message([](auto& a) { a.shared = {}; }), "0 shared experts, want one"));
  EXPECT_TRUE(
      has(message([](auto& a) { a.x = a.x.slice(1, 0, 16), a.acc = a.acc.slice(1, 0, 16); }),
          "gate: 32 columns for x of 16"));
}

}  // namespace
}  // namespace dsv4
