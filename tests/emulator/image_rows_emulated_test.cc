// The kernels of gemm/sm90/image_rows on the emulator: gate and up, then down, as the
// implementation sm90_image of experts.h runs them, against the fp64 oracle; and dense products.
// Every kind of image, any routing, ragged rows and columns. Bits depend neither on the order of
// events nor on the other rows. A fault that was put back and found: second terms that are zero.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/ops/gemm/sm90/experts/list_pairs.cuh"
#include "dsv4/ops/gemm/sm90/image_rows/kernel.cuh"
#include "dsv4/ops/parts/experts/experts_case.h"
#include "dsv4/ops/parts/experts/matrix_images_case_test.h"
#include "dsv4/ops/parts/experts/sm90_image/call.h"
#include "dsv4/ops/parts/linear/linear_case.h"
#include "tests/emulator/launch.h"
#include "tests/emulator/runs.h"
#include "tests/emulator/touching.h"

namespace dsv4 {
namespace {

namespace image_rows = gemm::image_rows;
using experts_kernel::sm90_image::ImageCall;
using gemm::experts_e4m3::kThreads;
using test::Arena, test::MatrixImagesCase, test::StoredAs;

struct Run {
  uint64_t seed;
  int ctas;
};
constexpr Run kRuns[] = {{0, 2}, {1, 3}, {2, 1}, {3, 5}};

template <int K, ImageScale kScale, bool kGateUp, int kColumns>
emulator::Kernel kernel_of(const image_rows::Params& p) {
  return {{.grid = p.ctas,
           .block = kThreads,
           .shared = sizeof(image_rows::SharedOf<K, kScale, kColumns>),
           .pdl = p.starts_early,
           .resident = 2},
          [p] { image_rows::image_rows_kernel<K, kScale, kGateUp, kColumns>(p); }};
}

template <bool kGateUp, int kColumns>
emulator::Kernel kernel_of(const WeightView& w, const image_rows::Params& p) {
  constexpr decltype(&kernel_of<2, ImageScale::kE4M4, kGateUp, kColumns>) kOf[] = {
      kernel_of<2, ImageScale::kE4M4, kGateUp, kColumns>,
      kernel_of<3, ImageScale::kE4M4, kGateUp, kColumns>,
      kernel_of<4, ImageScale::kE4M4, kGateUp, kColumns>,
      nullptr,
      kernel_of<4, ImageScale::kUe8m0, kGateUp, kColumns>,
      kernel_of<4, ImageScale::kE4M3, kGateUp, kColumns>};
  return kOf[image_of_format(w).kind()](p);
}

template <bool kGateUp>
emulator::Kernel product(const WeightView& w, const image_rows::Params& p) {
  return p.columns > 4096 ? kernel_of<kGateUp, 8192>(w, p) : kernel_of<kGateUp, 4096>(w, p);
}

// acc = sum of the rows of y of each token, which are in order of expert.
void combine(const ExpertsArgs& args, const ImageCall& call) {
  const int64_t k = slots(args);
  for (int64_t t = 0; t < args.x.dim(0); ++t) {
    std::vector<int32_t> pairs(call.lists.pair_of + t * k, call.lists.pair_of + (t + 1) * k);
    std::sort(pairs.begin(), pairs.end());
    for (const int32_t pair : pairs)
      for (int64_t i = 0; i < args.x.dim(1); ++i)
        args.acc.row<float>(t)[i] += call.y.row<float>(pair)[i];
  }
}

void run_experts(const MatrixImagesCase& c, const ExpertsArgs& args, const Run& how) {
  Scratch scratch;
  const ImageCall call =
      experts_kernel::sm90_image::make_image_call(args, how.ctas, c.scale2.as<float>(), scratch);
  std::vector<emulator::Kernel> kernels{emulator::touching({args.x, args.experts, args.weights})};
  if (call.needs_list())
    kernels.push_back({{.block = gemm::experts::kListThreads, .pdl = true}, [&] {
                         gemm::experts::list_pairs_kernel<image_rows::kMaxImages>(call.choices,
                                                                                  call.lists);
                       }});
  kernels.push_back(product<true>(args.stack.file()[0].w1, call.gate_up));
  kernels.push_back(product<false>(args.stack.file()[0].w2, call.down));
  emulator::launch_stream(kernels, how.seed);
  combine(args, call);
}

void check(MatrixImagesCase& c) {
  const std::vector<double> want = experts_oracle({.numerics = Numerics::kExact}, c.file_args);
  emulator::check_runs(
      c.arena, static_cast<int>(std::size(kRuns)), [&](int i) { run_experts(c, c.args, kRuns[i]); },
      [&] {
        const double rounding = 0x1p-9 + 0x1p-12;  // of h, of the tensor core
        EXPECT_EQ(test::compare(c.args.acc, want,
                                {.ulps = 4,
                                 .abs = experts_magnitude(c.file_args) * rounding,
                                 .rel = 4e-6,
                                 .cosine = 3e-6}),
                  "");
      });
}

constexpr StoredAs kKinds[] = {{WeightFormat::kKbit, 2, true},
                               {WeightFormat::kKbit, 3, true},
                               {WeightFormat::kKbit, 4, true},
                               {WeightFormat::kMxfp4},
                               {WeightFormat::kNvfp4}};

// Strips of gate that are even and odd, columns that end within a chunk and within a step.
TEST(ImageRowsEmulated, EveryKind) {
  for (const StoredAs& stored : kKinds) {
    SCOPED_TRACE(test::name(stored));
    MatrixImagesCase few({.t = 3, .k = 2, .d = 288}, 96, 4, stored, stored);
    check(few);
    MatrixImagesCase more({.t = 9, .k = 4, .d = 544}, 160, 5, stored, stored);  // a list kernel
    check(more);
    MatrixImagesCase one({.t = 1, .k = 6, .d = 1312}, 32, 9, stored, stored);
    check(one);
  }
}

TEST(ImageRowsEmulated, KindsOfGateAndUpAndOfDownDiffer) {
  MatrixImagesCase fp4({.t = 7, .k = 2, .d = 288}, 96, 3, kKinds[1], kKinds[4]);
  check(fp4);
  MatrixImagesCase bits({.t = 20, .k = 2, .d = 160}, 64, 3, kKinds[2], kKinds[0]);
  check(bits);
}

TEST(ImageRowsEmulated, WideRows) {
  MatrixImagesCase wide({.t = 2, .k = 2, .d = 8192}, 32, 3, kKinds[0], kKinds[0]);
  check(wide);
  MatrixImagesCase ends_in_a_step({.t = 1, .k = 1, .d = 5216}, 32, 2, kKinds[2], kKinds[2]);
  check(ends_in_a_step);
}

// Entries of 1 to 4 rows, one more, and lists of kernels and of a kernel.
TEST(ImageRowsEmulated, AllTokensToOneExpert) {
  for (const int64_t t : {1, 2, 3, 4, 5, 9, 33}) {
    SCOPED_TRACE(t);
    MatrixImagesCase kbit({.t = t, .k = 1, .d = 160, .only = 3}, 96, 5, kKinds[1], kKinds[1]);
    check(kbit);
    MatrixImagesCase nvfp4({.t = t, .k = 1, .d = 160, .only = 3}, 96, 5, kKinds[4], kKinds[4]);
    check(nvfp4);
  }
}

TEST(ImageRowsEmulated, Activations) {
  for (const GateActivation activation : {GateActivation::kGelu, GateActivation::kGeluTanh}) {
    MatrixImagesCase c({.t = 3, .k = 2, .d = 288}, 96, 4, kKinds[1], kKinds[1]);
    c.args.activation = c.file_args.activation = activation;
    c.args.swiglu_limit = c.file_args.swiglu_limit = 0;
    check(c);
  }
}

// acc, which was zero, after the first `tokens` tokens.
std::vector<float> result_of(const MatrixImagesCase& c, int64_t tokens, const Run& how) {
  ExpertsArgs args = c.args;
  const TensorView acc = c.args.acc.slice(0, 0, tokens);
  args.x = args.x.slice(0, 0, tokens), args.acc = acc;
  args.experts = args.experts.slice(0, 0, tokens), args.weights = args.weights.slice(0, 0, tokens);
  std::fill_n(acc.as<float>(), acc.numel(), 0.f);
  run_experts(c, args, how);
  return {acc.as<float>(), acc.as<float>() + acc.numel()};
}

TEST(ImageRowsEmulated, BitsDoNotDependOnTheBatch) {
  for (const StoredAs& stored : kKinds) {
    SCOPED_TRACE(test::name(stored));
    const MatrixImagesCase c({.t = 7, .k = 1, .d = 544, .only = 1}, 96, 2, stored, stored);
    const std::vector<float> together = result_of(c, 7, kRuns[1]);
    for (const int64_t tokens : {1, 2, 3, 4, 5}) {
      const std::vector<float> few = result_of(c, tokens, kRuns[0]);
      EXPECT_TRUE(std::equal(few.begin(), few.end(), together.begin())) << tokens;
    }
  }
}

// Dense products of any number of rows that one launch takes, in f32, bf16 and f16.
TEST(ImageRowsEmulated, DenseProducts) {
  for (const StoredAs& stored : kKinds) {
    for (const auto& [t, out] : {std::pair{1, DType::kF32}, {3, DType::kBF16}, {9, DType::kF16}}) {
      SCOPED_TRACE(fmt::format("{} t={}", test::name(stored), t));
      Arena arena;
      Rng rng(static_cast<uint64_t>(t));
      const WeightView weight = test::random_weight(arena, rng, stored, 133, 544);
      const LinearArgs args =
          test::random_linear(arena, rng, {.t = t, .x = DType::kBF16, .out = out}, weight);
      const WeightView image = test::matrix_images(arena, {weight})[0];
      const std::vector<double> want = linear_oracle(args);
      test::Tolerance tolerance = test::linear_tolerance(args, linear_magnitude(args));
      tolerance.abs += linear_magnitude(args) * 0x1p-12;  // of the tensor core
      emulator::check_runs(
          arena, static_cast<int>(std::size(kRuns)),
          [&](int i) {
            emulator::launch_stream(
                {emulator::touching({args.x}),
                 product<false>(
                     image, image_rows::make_dense_params(image, args.x, args.out, kRuns[i].ctas)),
                 emulator::touching({args.x, args.out})},
                kRuns[i].seed);
          },
          [&] { EXPECT_EQ(test::compare(args.out, want, tolerance), ""); });
    }
  }
}

// A weight whose blocks of 32 columns at the start of each 128 are zeros.
WeightView without_first_blocks(Arena& arena, Rng& rng, int64_t n, int64_t k) {
  const WeightView weight = test::random_weight(arena, rng, {WeightFormat::kKbit, 4, true}, n, k);
  auto* const scale = const_cast<uint8_t*>(weight.scale.as<uint8_t>());
  for (int64_t i = 0; i < weight.scale.numel(); ++i)
    if (i % (k / kKbitBlock) % 4 == 0) scale[i] = 0;
  return weight;
}

// x is not rounded: the largest numbers of a group meet zeros, and those that count have eight
// significant bits and are down to 2^-13 of them.
TEST(ImageRowsEmulated, SmallNumbersBesideLargeOnesAreExact) {
  constexpr int64_t kRows = 3, kColumns = 256;
  Arena arena;
  Rng rng(11);
  const WeightView weight = without_first_blocks(arena, rng, 64, kColumns);
  const LinearArgs args =
      test::random_linear(arena, rng, {.t = kRows, .x = DType::kBF16, .out = DType::kF32}, weight);
  for (int64_t t = 0; t < kRows; ++t) {
    auto* const x = const_cast<uint16_t*>(args.x.row<uint16_t>(t));
    const int octave = static_cast<int>(t) * 6;  // 0, 6, 12
    for (int64_t c = 0; c < kColumns; ++c) {
      const auto bits = static_cast<uint16_t>(rng.below(128) | rng.below(2) << 15);
      x[c] = static_cast<uint16_t>(bits | (c % 128 < 32 ? 127 : 126 - octave) << 7);
    }
  }
  const WeightView image = test::matrix_images(arena, {weight})[0];
  const double magnitude = linear_magnitude(args);  // of row 0
  emulator::launch_stream(
      {emulator::touching({args.x}),
       product<false>(image, image_rows::make_dense_params(image, args.x, args.out, 2))},
      0);
  const std::vector<double> want = linear_oracle(args);
  for (int64_t i = 0; i < args.out.numel(); ++i) {
    const int octave = static_cast<int>(i / 64) * 6;
    EXPECT_NEAR(args.out.as<float>()[i], want[static_cast<size_t>(i)],
                std::ldexp(magnitude, -octave) * 0x1p-12)
        << i;
  }
}

// An infinity does not become a finite number, and other rows do not see it.
TEST(ImageRowsEmulated, InfinitiesAndNaNAreNoNumbers) {
  Arena arena;
  Rng rng(12);
  const WeightView weight =
      test::random_weight(arena, rng, {WeightFormat::kKbit, 3, true}, 64, 256);
  const LinearArgs args =
      test::random_linear(arena, rng, {.t = 3, .x = DType::kBF16, .out = DType::kF32}, weight);
  const_cast<uint16_t*>(args.x.row<uint16_t>(0))[140] = 0x7f80;  // infinity
  const_cast<uint16_t*>(args.x.row<uint16_t>(2))[3] = 0x7fc0;    // NaN
  const WeightView image = test::matrix_images(arena, {weight})[0];
  emulator::launch_stream(
      {product<false>(image, image_rows::make_dense_params(image, args.x, args.out, 2))}, 0);
  for (int64_t i = 0; i < 64; ++i) {
    EXPECT_TRUE(std::isnan(args.out.row<float>(0)[i]) && std::isnan(args.out.row<float>(2)[i]));
    EXPECT_TRUE(std::isfinite(args.out.row<float>(1)[i]));
  }
}

}  // namespace
}  // namespace dsv4
