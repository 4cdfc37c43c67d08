#include "dsv4/ops/parts/experts/experts.h"

#include <cmath>

#include "dsv4/base/error.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#endif
#include "dsv4/ops/parts/experts/experts_case.h"
#include "dsv4/ops/parts/experts/images_case_test.h"
#include "tests/harness/op_check.h"
#include "tests/harness/weights.h"

namespace dsv4 {
namespace {

using test::Arena, test::one_token;

// Its cases are in experts_other_models_test.
const test::TestedElsewhere kOfOtherModels{"cuda_kbit", "sm90_image"};

struct Shape {
  int64_t t, k, e, d, inner;
};

struct Case {
  Arena arena;
  std::vector<ExpertWeights> table;
  ExpertsArgs args;
};

void fill_case(Case& c, const Shape& s, const test::StoredAs& stored, DType x_dtype) {
  Rng rng(static_cast<uint64_t>(s.t * 7919 + s.d + s.inner));
  const auto w1 = test::random_stack(c.arena, rng, stored, s.e, s.inner, s.d);
  const auto w3 = test::random_stack(c.arena, rng, stored, s.e, s.inner, s.d);
  const auto w2 = test::random_stack(c.arena, rng, stored, s.e, s.d, s.inner);
  for (size_t i = 0; i < w1.size(); ++i) c.table.push_back({.w1 = w1[i], .w3 = w3[i], .w2 = w2[i]});
  c.args =
      test::random_experts(c.arena, rng, {.t = s.t, .k = s.k, .d = s.d, .x = x_dtype}, c.table);
}

// Rounded weights have tests in linear; here they would change Q8 codes between two products.
void coarsen_codebooks(const Case& c) {
  for (const ExpertWeights& expert : c.table) {
    for (const WeightView& w : {expert.w1, expert.w3, expert.w2})
      if (w.format == WeightFormat::kKbit) test::coarsen(w.codebook);
  }
}

void check_experts(const Shape& shape, const test::StoredAs& stored, DType x_dtype,
                   Numerics numerics, const test::Tolerance& tolerance) {
  Case c;
  fill_case(c, shape, stored, x_dtype);
  if (numerics == Numerics::kOfficial) coarsen_codebooks(c);
  const Context context{.numerics = numerics};
  test::OpCase<ExpertsArgs> test{
      .name = fmt::format("{} {} t={} k={} d={} i={}", name(stored), name(numerics), shape.t,
                          shape.k, shape.d, shape.inner),
      .args = c.args,
      .outputs = {{"acc", c.args.acc, experts_oracle(context, c.args), tolerance}},
      .one_token = one_token,
      .num_tokens = shape.t};
  test.strided = [](ExpertsArgs& a, test::StridedCopy& copy) {
    copy(a.x), copy(a.experts), copy(a.weights), copy(a.addend), copy(a.acc);
  };
  check_op(experts.impls, context, c.arena, test);
}

// All f32: three sums of at most 300 terms, each a random walk of 2^-24 steps, and exp.
TEST(Experts, ExactAgreesWithOracle) {
  for (const test::StoredAs& stored : test::kAllStored) {
    for (const Shape& s : {Shape{0, 2, 3, 64, 32}, {1, 6, 8, 96, 160}, {9, 3, 4, 288, 64}}) {
      check_experts(s, stored, DType::kF32, Numerics::kExact, {.ulps = 4, .rel = 4e-6});
    }
  }
  check_experts({3, 2, 4, 37, 19}, {WeightFormat::kBF16}, DType::kF32, Numerics::kExact,
                {.ulps = 4, .rel = 4e-6});
}

// The sums before each rounding differ from the oracle's by about 2^-22, so about one in 10^4 of
// the values rounded to bf16 (steps of 2^-8) is on the other side of a tie, changes by a step, and
// may change a Q8 code (steps of 2^-3): one h changes by up to 1/8 of itself and y by about 1/8 /
// sqrt(inner) of its magnitude, below 2 % here. A missing Q8 would change every h by 2 % and the
// cosine by 1e-4.
TEST(Experts, OfficialAgreesWithOracle) {
  for (const test::StoredAs& stored : test::kAllStored) {
    for (const Shape& s : {Shape{0, 2, 3, 64, 32}, {1, 6, 8, 96, 160}, {9, 3, 4, 288, 64}}) {
      check_experts(s, stored, DType::kBF16, Numerics::kOfficial, {.rel = 0.02, .cosine = 5e-6});
    }
  }
}

// Shapes for the fast kernels of a device, with few and many tokens per expert.
TEST(Experts, AlignedShapesAgreeWithOracle) {
  for (const test::StoredAs& stored : test::kAllStored) {
    for (const Shape& s : {Shape{1, 6, 40, 256, 128}, {8, 3, 9, 128, 256}, {130, 2, 2, 64, 96}}) {
      check_experts(s, stored, DType::kBF16, Numerics::kOfficial, {.rel = 0.02, .cosine = 5e-6});
      check_experts(s, stored, DType::kBF16, Numerics::kExact, {.ulps = 4, .rel = 4e-6});
    }
  }
  // More pairs than one CTA of the plan stages, of few and of many experts.
  for (int64_t e : {3, 40}) {
    check_experts({600, 2, e, 64, 32}, {WeightFormat::kBF16}, DType::kBF16, Numerics::kOfficial,
                  {.rel = 0.02, .cosine = 5e-6});
  }
}

// Sums of 600 pairs span two waves, 1100 tokens two chunks.
TEST(Experts, BitsDoNotDependOnWavesAndChunks) {
  Case c;
  fill_case(c, {1100, 2, 5, 64, 32}, {WeightFormat::kMxfp4}, DType::kBF16);
  c.arena.freeze();
  const auto run = [&](int64_t chunk) {
    c.arena.prepare();
    for (int64_t t = 0; t < 1100; t += chunk) {
      const int64_t end = std::min<int64_t>(1100, t + chunk);
      ExpertsArgs part = c.args;
      part.x = c.args.x.slice(0, t, end);
      part.experts = c.args.experts.slice(0, t, end);
      part.weights = c.args.weights.slice(0, t, end);
      part.acc = c.args.acc.slice(0, t, end);
      experts(Context{}, part);
    }
    c.arena.verify();
    return c.arena.written();
  };
  const auto whole = run(1100);
  for (const int64_t chunk : {1, 7, 300}) EXPECT_TRUE(whole == run(chunk)) << chunk;
}

void check_mixed(Case& c, const char* name, const test::Tolerance& tolerance,
                 const Context& context) {
  test::OpCase<ExpertsArgs> test{
      .name = name,
      .args = c.args,
      .outputs = {{"acc", c.args.acc, experts_oracle(context, c.args), tolerance}},
      .one_token = one_token,
      .num_tokens = c.args.x.dim(0)};
  test.strided = [](ExpertsArgs& a, test::StridedCopy& copy) {
    copy(a.x), copy(a.experts), copy(a.weights), copy(a.addend), copy(a.acc);
  };
  check_op(experts.impls, context, c.arena, test);
}

// Formats may differ between the matrices of one expert; each matrix determines its own Q8.
TEST(Experts, MixedFormats) {
  Case c;
  fill_case(c, {3, 2, 2, 128, 64}, {WeightFormat::kMxfp4}, DType::kBF16);
  Rng rng(4);
  c.table[0].w3 = test::random_weight(c.arena, rng, {WeightFormat::kBF16}, 64, 128);
  c.table[1].w2 = test::random_weight(c.arena, rng, {WeightFormat::kF32}, 128, 64);
  check_mixed(c, "mixed", {.rel = 0.02, .cosine = 5e-6}, {});
}

// A recipe: gate and up K = 2, down K = 3; one unchanged expert, and one with another K.
TEST(Experts, MixedBits) {
  for (const Numerics numerics : {Numerics::kExact, Numerics::kOfficial}) {
    const bool exact = numerics == Numerics::kExact;
    Case c;
    fill_case(c, {9, 3, 4, 288, 544}, {WeightFormat::kMxfp4}, exact ? DType::kF32 : DType::kBF16);
    Rng rng(14);
    for (const size_t e : {0, 2, 3}) {
      const int more = e == 3 ? 2 : 0;
      const test::StoredAs side{WeightFormat::kKbit, 2 + more}, down{WeightFormat::kKbit, 3 + more};
      c.table[e] = {.w1 = test::random_weight(c.arena, rng, side, 544, 288),
                    .w3 = test::random_weight(c.arena, rng, side, 544, 288),
                    .w2 = test::random_weight(c.arena, rng, down, 288, 544)};
    }
    check_mixed(c, "mixed bits",
                exact ? test::Tolerance{.ulps = 4, .rel = 4e-6}
                      : test::Tolerance{.rel = 0.02, .cosine = 5e-6},
                {.numerics = numerics});
  }
}

// One expert for every token; acc is overwritten, NaN included.
TEST(Experts, SharedExpertOverwrites) {
  for (const test::StoredAs& stored : test::kAllStored) {
    Case c;
    fill_case(c, {9, 1, 1, 96, 160}, stored, DType::kBF16);
    coarsen_codebooks(c);
    c.args.experts = {}, c.args.weights = {}, c.args.add = false;
    test::set_value(c.args.acc, 5, NAN);
    check_mixed(c, "shared", {.rel = 0.02, .cosine = 5e-6}, {});
  }
}

ConstTensorView random_addend(Arena& arena, DType dtype, const ConstTensorView& acc) {
  Rng rng(23);
  const TensorView addend = arena.input(dtype, {acc.dim(0), acc.dim(1)});
  test::fill_normal(addend, rng);
  return addend;
}

// A tensor that is added last, to acc as it was or instead of it.
TEST(Experts, AddsAnAddend) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const bool add : {true, false}) {
      Case c;
      fill_case(c, {5, 3, 4, 288, 64}, {WeightFormat::kMxfp4}, DType::kBF16);
      c.args.addend = random_addend(c.arena, dtype, c.args.acc);
      c.args.add = add;
      check_mixed(c, "addend", {.rel = 0.02, .cosine = 5e-6}, {});
    }
  }
  Case prompt;
  fill_case(prompt, {68, 1, 1, 256, 384}, {WeightFormat::kFp8Block}, DType::kBF16);
  prompt.args.experts = {}, prompt.args.weights = {};
  prompt.args.addend = random_addend(prompt.arena, DType::kBF16, prompt.args.acc);
  check_mixed(prompt, "shared, prompt, addend", {.rel = 0.02, .cosine = 2e-5}, {});
}

// Whole scale blocks and enough tokens for products by cuBLASLt. FP8 tensor cores keep 13 bits of a
// sum behind its largest term, so one bf16 value in eight may be a step off and one Q8 code in a
// hundred, which adds 1e-5 to the cosine; a missing Q8 would add 1e-4.
TEST(Experts, SharedExpertOfAPrompt) {
  for (const bool add : {true, false}) {
    Case c;
    fill_case(c, {68, 1, 1, 256, 384}, {WeightFormat::kFp8Block}, DType::kBF16);
    c.args.experts = {}, c.args.weights = {}, c.args.add = add;
    check_mixed(c, "shared, prompt", {.rel = 0.02, .cosine = 2e-5}, {});
  }
}

void check_images(test::ImagesCase& c, const std::string& name, double cosine = 5e-6) {
  test::OpCase<ExpertsArgs> test{.name = name,
                                 .args = c.args,
                                 .outputs = {{"acc",
                                              c.args.acc,
                                              experts_oracle({}, c.file_args),
                                              {.rel = 0.02, .cosine = cosine}}},
                                 .one_token = one_token,
                                 .num_tokens = c.args.x.dim(0)};
  test.strided = [](ExpertsArgs& a, test::StridedCopy& copy) {
    copy(a.x), copy(a.experts), copy(a.weights), copy(a.addend), copy(a.acc);
  };
  check_op(experts.impls, {}, c.arena, test);
}

// Kernel images, which only devices read: odd numbers of tokens, rows and columns that are not
// whole units, one K for gate and up and another for down.
TEST(Experts, ImagesAgreeWithOracle) {
  if (test::gpu() == nullptr) GTEST_SKIP() << "kernel images are read on a GPU";
  for (const int bits : {2, 3, 4, 5}) {
    for (const test::ImagesShape& s :
         {test::ImagesShape{.t = 0, .k = 2, .e = 3, .d = 64, .inner = 32},
          {.t = 1, .k = 6, .e = 40, .d = 256, .inner = 128},
          {.t = 7, .k = 3, .e = 9, .d = 288, .inner = 544},
          {.t = 33, .k = 6, .e = 256, .d = 96, .inner = 64},
          {.t = 130, .k = 2, .e = 2, .d = 608, .inner = 96}}) {
      test::ImagesCase c(s, bits, bits == 5 ? 2 : bits + 1);
      check_images(c, fmt::format("images K={} t={} e={} d={} i={}", bits, s.t, s.e, s.d, s.inner));
    }
  }
  test::ImagesCase wide({.t = 3, .k = 2, .e = 4, .d = 4096, .inner = 2048}, 3, 3);
  check_images(wide, "images of V4-Flash's width");
  test::ImagesCase pro({.t = 3, .k = 2, .e = 4, .d = 7168, .inner = 3072}, 2, 2);
  check_images(pro, "images of V4-Pro's width");
}

constexpr WeightFormat kFp4[] = {WeightFormat::kMxfp4, WeightFormat::kNvfp4};

// Entries of 1 to 9 pairs, which NVFP4 divides by 4; a k-bit product beside an FP4 one.
//
// A single token has few Q8 codes of h at the smallest shapes, 768 where i = 128. One of them that
// is a step off, since FP8 tensor cores keep 13 bits of a sum (SharedExpertOfAPrompt), adds up to
// 1e-5 to the cosine there; sm90_grouped, whose sums are f32, stays below 5e-6.
TEST(Experts, Fp4ImagesAgreeWithOracle) {
  if (test::gpu() == nullptr) GTEST_SKIP() << "kernel images are read on a GPU";
  for (const WeightFormat fp4 : kFp4) {
    for (const test::ImagesShape& s :
         {test::ImagesShape{.t = 0, .k = 2, .e = 3, .d = 64, .inner = 32},
          {.t = 1, .k = 6, .e = 40, .d = 256, .inner = 128},
          {.t = 7, .k = 3, .e = 9, .d = 288, .inner = 544},
          {.t = 33, .k = 6, .e = 256, .d = 96, .inner = 64},
          {.t = 130, .k = 2, .e = 2, .d = 608, .inner = 96},
          {.t = 3, .k = 2, .e = 4, .d = 4096, .inner = 2048},
          {.t = 3, .k = 2, .e = 4, .d = 7168, .inner = 3072}}) {
      test::ImagesCase c(s, fp4, fp4);
      check_images(c,
                   fmt::format("images {} t={} e={} d={} i={}", name(fp4), s.t, s.e, s.d, s.inner),
                   s.t == 1 ? 2e-5 : 5e-6);
    }
    for (const int64_t t : {2, 3, 4, 5, 8, 9, 17}) {
      test::ImagesCase one({.t = t, .k = 1, .e = 5, .d = 160, .inner = 96, .only = 3}, fp4, fp4);
      check_images(one, fmt::format("{} tokens at one {} expert", t, name(fp4)));
    }
    test::ImagesCase prompt({.t = 720, .k = 6, .e = 40, .d = 64, .inner = 32}, fp4, fp4);
    check_images(prompt, "prompt");
    test::ImagesCase beside({.t = 9, .k = 3, .e = 4, .d = 288, .inner = 96}, fp4, 3);
    check_images(beside, "beside k3");
  }
}

// Exponents of MXFP4 that e4m3 operands hold, in an even number of units; and a prompt of them.
TEST(Experts, Mxfp4ImagesOfSpreadExponents) {
  if (test::gpu() == nullptr) GTEST_SKIP() << "kernel images are read on a GPU";
  for (const test::ImagesShape& s :
       {test::ImagesShape{.t = 3, .k = 2, .e = 4, .d = 512, .inner = 288, .exponents = 12},
        {.t = 300, .k = 2, .e = 8, .d = 1024, .inner = 512, .exponents = 12},
        {.t = 257, .k = 1, .e = 3, .d = 2048, .inner = 512, .only = 1, .exponents = 12},
        {.t = 700, .k = 6, .e = 40, .d = 512, .inner = 512, .exponents = 5}}) {
    test::ImagesCase c(s, WeightFormat::kMxfp4, WeightFormat::kMxfp4);
    check_images(c, fmt::format("{} exponents t={} d={}", s.exponents, s.t, s.d), 2e-5);
  }
}

TEST(Experts, ImagesWithAnAddend) {
  if (test::gpu() == nullptr) GTEST_SKIP() << "kernel images are read on a GPU";
  test::ImagesCase c({.t = 9, .k = 3, .e = 5, .d = 288, .inner = 96}, 3, 3);
  c.file_args.addend = c.args.addend = random_addend(c.arena, DType::kBF16, c.args.acc);
  check_images(c, "addend");
}

// Experts with 0, 1, 8, 9 and 17 pairs in one call, and all tokens at one expert.
TEST(Experts, ImagesOfUnevenRouting) {
  if (test::gpu() == nullptr) GTEST_SKIP() << "kernel images are read on a GPU";
  test::ImagesCase c({.t = 35, .k = 1, .e = 6, .d = 160, .inner = 96}, 3, 3);
  auto* ids = const_cast<int32_t*>(c.args.experts.as<int32_t>());
  const int pairs_of[] = {17, 0, 8, 1, 9, 0};
  for (int e = 0, next = 0; e < 6; ++e) {
    for (int i = 0; i < pairs_of[e]; ++i, ++next) ids[next * 13 % 35] = e;  // 13 and 35: coprime
  }
  check_images(c, "uneven");
  for (const int64_t t : {8, 9, 17}) {
    test::ImagesCase one({.t = t, .k = 1, .e = 5, .d = 160, .inner = 96, .only = 3}, 3, 4);
    check_images(one, fmt::format("{} tokens at one expert", t));
  }
}

// More pairs than are staged at a time, and several entries for every expert.
TEST(Experts, ImagesOfAPrompt) {
  if (test::gpu() == nullptr) GTEST_SKIP() << "kernel images are read on a GPU";
  test::ImagesCase c({.t = 720, .k = 6, .e = 40, .d = 64, .inner = 32}, 3, 3);
  check_images(c, "prompt");
}

#if DSV4_CUDA
// What is too wide for sm90_few, sm90_wide takes up to 7,168 columns, on the e4m3 grid.
TEST(Experts, DryRunOfWideExperts) {
  const std::unique_ptr<Device> hopper = Device::dry_run({.name = "H", .major = 9});
  const Context context{.device = hopper.get()};

  const test::ImagesCase c({.t = 70, .k = 1, .e = 2, .d = 4352, .inner = 32}, 2, 3);
  EXPECT_EQ(best_layout(context, c.file), WeightLayout::kImage);
  EXPECT_EQ(choose(experts, context, one_token(c.args, 0)).name, "sm90_wide");
  EXPECT_EQ(choose(experts, context, c.args).name, "sm90_grouped") << "many pairs for each expert";

  for (const test::ImagesShape& s :
       {test::ImagesShape{.t = 1, .k = 1, .e = 2, .d = 7200, .inner = 32},
        {.t = 1, .k = 1, .e = 2, .d = 32, .inner = 4352}}) {
    const test::ImagesCase wider(s, 2, 2);
    EXPECT_EQ(best_layout(context, wider.file), WeightLayout::kFile);
    EXPECT_EQ(choose(experts, context, wider.args).name, "sm90_grouped");
  }
  const Codebook off_grid = nf_codebook(3);
  std::copy(off_grid.values().begin(), off_grid.values().end(),
            const_cast<float*>(c.file[0].w2.codebook.as<float>()));
  EXPECT_EQ(best_layout(context, c.file), WeightLayout::kFile) << "codebook of down";
  const test::ImagesCase narrow({.t = 1, .k = 1, .e = 2, .d = 64, .inner = 32}, 2, 2);
  EXPECT_EQ(best_layout(context, narrow.file), WeightLayout::kImage);
  EXPECT_EQ(choose(experts, context, narrow.args).name, "sm90_few_e4m3");
}

// FP4 experts are images on Hopper under official numerics, and files elsewhere.
TEST(Experts, DryRunOfFp4Experts) {
  const std::unique_ptr<Device> hopper = Device::dry_run({.name = "H", .major = 9});
  const std::unique_ptr<Device> other = Device::dry_run({.name = "A", .major = 8});
  const Context context{.device = hopper.get()};
  for (const WeightFormat fp4 : kFp4) {
    const test::ImagesCase c({.t = 70, .k = 1, .e = 2, .d = 4352, .inner = 32}, fp4, fp4);
    EXPECT_EQ(best_layout(context, c.file), WeightLayout::kImage);
    EXPECT_EQ(best_layout({.device = other.get()}, c.file), WeightLayout::kFile);
    EXPECT_EQ(best_layout({.numerics = Numerics::kExact, .device = hopper.get()}, c.file),
              WeightLayout::kFile);
    EXPECT_EQ(choose(experts, context, one_token(c.args, 0)).name, "sm90_wide");
    EXPECT_EQ(choose(experts, context, c.args).name, "sm90_grouped")
        << "many pairs for each expert";
    const test::ImagesCase beside({.t = 1, .k = 1, .e = 2, .d = 64, .inner = 32}, fp4, 3);
    EXPECT_EQ(best_layout(context, beside.file), WeightLayout::kImage);
    const Codebook off_grid = nf_codebook(3);
    std::copy(off_grid.values().begin(), off_grid.values().end(),
              const_cast<float*>(beside.file[0].w2.codebook.as<float>()));
    EXPECT_EQ(best_layout(context, beside.file), WeightLayout::kFile) << "codebook of down";
    const test::ImagesCase flash({.t = 1, .k = 1, .e = 2, .d = 64, .inner = 32}, fp4, fp4);
    EXPECT_EQ(choose(experts, context, flash.args).name, "sm90_few_e4m3");
  }
}
#endif

TEST(Experts, ImagesNeedAntisymmetricCodebooksOfOneK) {
  Case c;
  fill_case(c, {2, 2, 3, 64, 64}, {WeightFormat::kKbit, 3}, DType::kBF16);
  const auto set = [](const WeightView& w, const Codebook& book) {
    std::copy(book.values().begin(), book.values().end(),
              const_cast<float*>(w.codebook.as<float>()));
  };
  for (const WeightView& w : {c.table[0].w1, c.table[0].w3, c.table[0].w2}) set(w, nf_codebook(3));
  const char* why = nullptr;
  const ExpertImages images = expert_images(c.table, &why);
  ASSERT_EQ(why, nullptr);
  EXPECT_EQ(images.gate_up.n, 128);
  EXPECT_TRUE(images.gate_up.sign_magnitude);
  // n is padded to 16 rows and k to 256 columns: the four blocks of a row of 64 become eight.
  EXPECT_EQ(images.gate_up.bytes(), 4 * (c.table[0].w1.bytes() + c.table[0].w3.bytes()));
  const auto reason = [&] {
    EXPECT_TRUE(expert_images(c.table, &why).empty());
    return std::string(why);
  };
  set(c.table[0].w3, bnf_codebook(3));
  EXPECT_NE(reason().find("differ in format, bits or codebook"), std::string::npos);
  set(c.table[0].w3, nf_codebook(3));
  set(c.table[0].w2, user_codebook(std::vector<float>{-1, 0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(reason(), "codebooks are not antisymmetric");
  Rng rng(3);
  c.table[1].w2 = test::random_weight(c.arena, rng, {WeightFormat::kBF16}, 64, 64);
  EXPECT_NE(reason().find("differ in format"), std::string::npos);
}

// Scalars computed by hand: d = inner = 1, w1 = w2 = w3 = 1.
TEST(Experts, ClampAndOrderOfSteps) {
  Arena arena;
  const TensorView one = arena.input(DType::kF32, {1, 1});
  test::set_value(one, 0, 1);
  const WeightView w{.format = WeightFormat::kF32, .n = 1, .k = 1, .data = one};
  const std::vector<ExpertWeights> table{{w, w, w}};
  const TensorView x = arena.input(DType::kF32, {3, 1}), ids = arena.input(DType::kI32, {3, 1});
  const TensorView weights = arena.input(DType::kF32, {3, 1});
  const TensorView acc = arena.inout(DType::kF32, {3, 1});
  for (int i = 0; i < 3; ++i) test::set_value(weights, i, 0.5);
  test::set_value(x, 0, 2);
  test::set_value(x, 1, 50);   // both clamped to 10
  test::set_value(x, 2, -50);  // up clamped to -10, gate not
  test::set_value(acc, 0, 100);
  const ExpertsArgs args{
      .x = x, .stack = table, .experts = ids, .weights = weights, .swiglu_limit = 10.f, .acc = acc};
  experts({.numerics = Numerics::kExact}, args);
  EXPECT_FLOAT_EQ(acc.as<float>()[0], static_cast<float>(100 + 0.5 * 4 / (1 + std::exp(-2.))));
  EXPECT_FLOAT_EQ(acc.as<float>()[1], static_cast<float>(0.5 * 100 / (1 + std::exp(-10.))));
  EXPECT_NEAR(static_cast<double>(acc.as<float>()[2]), 0.5 * 500 * std::exp(-50.), 1e-25);
}

// cuda takes experts anywhere, in formats that agree on whether activations are quantized.
TEST(Experts, OtherDeviceImplementationsNeedEvenlySpacedExperts) {
  Case c;
  fill_case(c, {40, 2, 3, 64, 64}, {WeightFormat::kMxfp4}, DType::kBF16);
  std::swap(c.table[0].w2.data, c.table[1].w2.data);
  Rng rng(3);
  for (const Impl<ExpertsArgs>& row : experts.impls) {
    if (row.arch == Arch::kCpu || row.name == "cublaslt_fp8" || row.name.starts_with("sm90_"))
      continue;  // one expert only, or kernel images
    const auto with = [&](WeightFormat format) {
      std::vector<ExpertWeights> mixed(c.table);
      mixed[2].w1 = test::random_weight(c.arena, rng, {format}, 64, 64);
      ExpertsArgs args = c.args;
      args.stack = mixed;
      return row.reject(Context{}, args);
    };
    const bool any = row.name == "cuda";
    EXPECT_STREQ(row.reject(Context{}, c.args), any ? nullptr : "experts are not evenly spaced");
    EXPECT_STREQ(with(WeightFormat::kNvfp4), any ? nullptr : "experts differ in format");
    EXPECT_STREQ(with(WeightFormat::kBF16),
                 any ? "only some weights take quantized activations" : "experts differ in format");
  }
}

TEST(Experts, ReportsErrors) {
  Case c;
  fill_case(c, {2, 2, 3, 32, 64}, {WeightFormat::kBF16}, DType::kF32);
  const auto error = [&] { return test::error_of([&] { experts(Context{}, c.args); }); };
  int32_t& id = const_cast<int32_t&>(c.args.experts.row<int32_t>(1)[0]);
  for (const int32_t wrong : {3, -1}) {
    id = wrong;
    EXPECT_NE(error().find(fmt::format("experts[1, 0] is {}, there are 3 experts", wrong)),
              std::string::npos);
  }
  id = 0;
  const ConstTensorView ids = c.args.experts;
  c.args.experts = {};
  EXPECT_NE(error().find("want no weights and one expert, got some weights and 3"),
            std::string::npos);
  c.args.experts = ids;
  c.table[1].w2 = c.table[1].w1;
  EXPECT_NE(error().find("w2: want [32, 64], got [64, 32]"), std::string::npos);
}

}  // namespace
}  // namespace dsv4
