// The kernel of gemm/sm90/small_m on the emulator, against the oracle of linear.h: every format,
// number of ranks and token tile; bits depend neither on the order of events nor on the other
// tokens.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "dsv4/base/error.h"
#include "dsv4/ops/gemm/sm90/small_m/two_formats.cuh"
#include "dsv4/ops/gemm/x/boundary.cuh"
#include "dsv4/ops/model/hc_boundary/hc_boundary_case.h"
#include "dsv4/ops/model/hc_boundary/sm90_few/finish.cuh"
#include "dsv4/ops/model/hc_boundary/sm90_few/mix.cuh"
#include "dsv4/ops/oracle.h"
#include "dsv4/ops/parts/linear/linear_case.h"
#include "tests/emulator/runs.h"
#include "tests/emulator/small_m_case.h"
#include "tests/emulator/touching.h"
#include "tests/harness/weights.h"

namespace dsv4 {
namespace {

using gemm::Format;
using test::Arena;
using test::make_map;
using test::product_kernel;
using test::random_product;
using Scene = test::ProductScene;

LinearArgs linear_args(const gemm::Product& p) {
  return {.x = p.in.x,
          .x_scale = p.in.x_scale,
          .weight = p.weight,
          .out = p.out,
          .groups = p.groups,
          .quantize_x = p.in.quantize};
}

// The product twice, after kernels that write its activations.
void run_emulated(const gemm::Product& p, int num_sms, uint64_t seed, bool by_columns = false) {
  const emulator::Kernel product = product_kernel(p, num_sms, by_columns);
  std::vector<emulator::Kernel> kernels{emulator::touching({p.in.x}), product, product};
  if (!p.in.x_scale.empty())
    kernels.insert(kernels.begin() + 1, emulator::touching({p.in.x_scale}));
  emulator::launch_stream(kernels, seed);
}

// Products of e4m3 keep 13 fractional bits on a GPU; the emulator's are exact.
test::Tolerance tolerance(const LinearArgs& args) {
  return test::linear_tolerance(args, linear_magnitude(args));
}

void check(const Scene& scene) {
  SCOPED_TRACE(fmt::format("format {} t {} n {} k {} groups {} sms {}",
                           static_cast<int>(scene.format), scene.t, scene.n, scene.k, scene.groups,
                           scene.num_sms));
  Arena arena;
  Rng rng(static_cast<uint64_t>(scene.t * 1000 + scene.n * 10 + scene.k));
  const gemm::Product p = random_product(arena, rng, scene);
  const std::vector<double> want = linear_oracle(linear_args(p));
  const test::Tolerance tolerated = tolerance(linear_args(p));
  emulator::check_runs(
      arena, 4, [&](int seed) { run_emulated(p, scene.num_sms, static_cast<uint64_t>(seed)); },
      [&] { EXPECT_EQ(test::compare(p.out, want, tolerated), ""); });
}

TEST(SmallMEmulated, Formats) {
  for (const Format format : {Format::kFp8, Format::kBf16, Format::kFp8Bf16}) {
    check({.t = 1, .n = 64, .k = 128, .format = format});
    check({.t = 5, .n = 130, .k = 640, .format = format});
    check({.t = 16, .n = 72, .k = 384, .format = format, .f32_out = true});
    check({.t = 31, .n = 65, .k = 512, .format = format});
    check({.t = 70, .n = 40, .k = 256, .format = format});
  }
}

// Activations in the ring, in tiles of 48 and 64 tokens: one slab and more than there are stages,
// several tiles of a cluster, groups.
TEST(SmallMEmulated, StreamsX) {
  for (const Format format : {Format::kFp8, Format::kBf16}) {
    check({.t = 33, .n = 64, .k = 128, .format = format});
    check({.t = 40, .n = 130, .k = 1408, .format = format, .f32_out = true});
    check({.t = 48, .n = 64 * 3 + 5, .k = 640, .format = format, .num_sms = 1});
    check({.t = 63, .n = 72, .k = 2560, .format = format, .num_sms = 4});
    check({.t = 64, .n = 64 * 4, .k = 1024, .format = format, .num_sms = 1});
    check({.t = 50, .n = 128, .k = 256, .format = format, .groups = 3});
  }
}

// Tokens [first, end) of a product, computed without the others, have the bits that they have among
// all.
void expect_bits_of_ranges(const Scene& scene,
                           std::span<const std::pair<int64_t, int64_t>> ranges) {
  Arena arena;
  Rng rng(6);
  const gemm::Product all = random_product(arena, rng, scene);
  arena.prepare();
  run_emulated(all, 4, 1);
  float* const out = all.out.as<float>();
  const std::vector<float> want(out, out + all.out.numel());
  for (const auto& [first, end] : ranges) {
    gemm::Product some = all;
    some.in.x = all.in.x.slice(0, first, end), some.out = all.out.slice(0, first, end);
    if (!all.in.x_scale.empty()) some.in.x_scale = all.in.x_scale.slice(0, first, end);
    std::fill_n(some.out.as<float>(), some.out.numel(), NAN);
    run_emulated(some, 4, 2);
    EXPECT_TRUE(std::equal(want.begin(), want.end(), out)) << first << " " << end;
  }
}

// Alone, and in tiles that keep activations and that stream them.
TEST(SmallMEmulated, BitsOfATokenDoNotDependOnTheTile) {
  constexpr std::pair<int64_t, int64_t> kRanges[] = {{0, 64}, {0, 1},   {1, 9},
                                                     {9, 24}, {24, 56}, {20, 64}};
  for (const Format format : {Format::kFp8, Format::kBf16})
    expect_bits_of_ranges({.t = 64, .n = 100, .k = 1408, .format = format, .f32_out = true},
                          kRanges);
}

// Rows [first, end) of a weight, computed without the others as a rank does, have the bits that
// they have among all, where the ranks of a cluster follow from the columns.
void expect_bits_of_rows(const Scene& scene, std::span<const std::pair<int64_t, int64_t>> ranges) {
  SCOPED_TRACE(
      fmt::format("format {} t {} k {}", static_cast<int>(scene.format), scene.t, scene.k));
  Arena arena;
  Rng rng(7);
  const gemm::Product all = random_product(arena, rng, scene);
  arena.prepare();
  run_emulated(all, scene.num_sms, 1, true);
  const auto* const out = reinterpret_cast<const uint32_t*>(all.out.data);
  const std::vector<uint32_t> want(out, out + all.out.numel());
  for (const auto& [first, end] : ranges) {
    gemm::Product some = all;
    some.weight = all.weight.rows(first, end), some.out = all.out.slice(1, first, end);
    for (int64_t t = 0; t < scene.t; ++t) std::fill_n(some.out.row<float>(t), some.out.dim(1), NAN);
    run_emulated(some, scene.num_sms, 2, true);
    EXPECT_TRUE(std::equal(want.begin(), want.end(), out)) << first << " " << end;
  }
}

// Without that 40 tiles of rows have four ranks each, eight tiles eight.
TEST(SmallMEmulated, BitsOfARowDoNotDependOnTheOtherRows) {
  constexpr std::pair<int64_t, int64_t> kRows[] = {{0, 512}, {1280, 1408}};
  for (const Format format : {Format::kFp8, Format::kBf16, Format::kFp8Bf16, Format::kKbit5})
    expect_bits_of_rows(
        {.t = 1, .n = 2560, .k = 2560, .format = format, .num_sms = 16, .f32_out = true}, kRows);
  expect_bits_of_rows(
      {.t = 40, .n = 640, .k = 640, .format = Format::kBf16, .num_sms = 8, .f32_out = true},
      std::span(kRows).first(1));
}

TEST(SmallMEmulated, Groups) {
  for (const Format format : {Format::kFp8, Format::kBf16, Format::kFp8Bf16})
    check({.t = 3, .n = 128, .k = 256, .format = format, .groups = 3});
}

TEST(SmallMEmulated, ScalesInF32) {
  check({.t = 3, .n = 200, .k = 384, .f32_scale = true});
}

TEST(SmallMEmulated, QuantizesX) {
  check({.t = 1, .n = 70, .k = 640, .quantize = true});
  check({.t = 7, .n = 70, .k = 1408, .quantize = true});
}

// 1 to 8 ranks of one to five slabs; both numbers of columns of a product, the second of them
// filled, and twice; rows and groups that end inside a tile.
TEST(SmallMEmulated, BitPlanes) {
  constexpr Format kKbit = Format::kKbit5;
  check({.t = 1, .n = 64, .k = 256, .format = kKbit});
  check({.t = 2, .n = 70, .k = 1280, .format = kKbit, .num_sms = 4, .f32_out = true});
  check({.t = 3, .n = 130, .k = 768, .format = kKbit});
  check({.t = 8, .n = 65, .k = 2560, .format = kKbit});
  check({.t = 11, .n = 40, .k = 512, .format = kKbit, .f32_out = true});
  check({.t = 2, .n = 128, .k = 256, .format = kKbit, .groups = 3});
  check({.t = 2, .n = 70, .k = 512, .format = kKbit, .quantize = true});
  check({.t = 4, .n = 70, .k = 1536, .format = kKbit, .num_sms = 4, .quantize = true});
  check({.t = 1, .n = 64 * 5, .k = 1536, .format = kKbit, .num_sms = 1});
  check({.t = 1, .n = 60, .k = 10240, .format = kKbit});  // scales of more than four slabs
  constexpr Format kKbit4 = Format::kKbit4;
  check({.t = 2, .n = 70, .k = 1280, .format = kKbit4, .num_sms = 4, .f32_out = true});
  check({.t = 8, .n = 65, .k = 2560, .format = kKbit4});
  check({.t = 4, .n = 70, .k = 1536, .format = kKbit4, .num_sms = 4, .quantize = true});
}
TEST(SmallMEmulated, BitPlanesTimesBf16) {
  constexpr Format kKbit = Format::kKbit5Bf16;
  check({.t = 2, .n = 70, .k = 1280, .format = kKbit, .num_sms = 4, .f32_out = true});
  check({.t = 7, .n = 65, .k = 2560, .format = kKbit});
  check({.t = 3, .n = 128, .k = 512, .format = kKbit, .groups = 3});
  check({.t = 5, .n = 65, .k = 2560, .format = Format::kKbit4Bf16});
}

// Alone and among more tokens than a tile of two has.
TEST(SmallMEmulated, BitPlanesOfATokenDoNotDependOnTheOthers) {
  constexpr std::pair<int64_t, int64_t> kTokens[] = {{0, 1}, {1, 2}, {2, 3}, {3, 4},
                                                     {4, 5}, {5, 6}, {6, 7}};
  for (const Format format : {Format::kKbit4, Format::kKbit5, Format::kKbit5Bf16})
    expect_bits_of_ranges({.t = 7, .n = 100, .k = 1280, .format = format, .f32_out = true},
                          kTokens);
}

// Tiles of one cluster use the ring and the exchange buffers again.
TEST(SmallMEmulated, ManyTilesOfACluster) {
  check({.t = 1, .n = 64 * 5, .k = 1024, .num_sms = 1});
  check({.t = 8, .n = 64 * 5 + 3, .k = 1024, .num_sms = 1});
  check({.t = 17, .n = 64 * 4, .k = 1024, .format = Format::kBf16, .num_sms = 1});
}

constexpr test::StoredAs kFp8{WeightFormat::kFp8Block}, kBf16{WeightFormat::kBF16},
    kKbit4{WeightFormat::kKbit, 4, true}, kKbit5{WeightFormat::kKbit, 5, true};

// Weights of two formats in one launch. first: what takes Q8 of x.
void check_two_formats(int64_t t, int num_sms, bool bf16, const test::StoredAs& first = kFp8,
                       int64_t k = 384) {
  SCOPED_TRACE(fmt::format("{} tokens, {} SMs, {}", t, num_sms, name(first)));
  Arena arena;
  Rng rng(static_cast<uint64_t>(t + num_sms));
  const TensorView x = arena.input(DType::kBF16, {t, k});
  test::fill_normal(x, rng);
  std::vector<gemm::Target> targets;
  std::vector<std::vector<double>> want;
  std::vector<test::Tolerance> tolerated;
  const auto add = [&](const test::StoredAs& stored, int64_t n, DType out) {
    targets.push_back({test::random_weight(arena, rng, stored, n, k), arena.output(out, {t, n})});
    const LinearArgs args{.x = x,
                          .weight = targets.back().weight,
                          .out = targets.back().out,
                          .quantize_x = gemm::TwoFormats::takes_q8(targets.back())};
    want.push_back(linear_oracle(args));
    tolerated.push_back(tolerance(args));
  };
  add(first, 130, DType::kBF16);
  if (bf16) add(kBf16, 70, DType::kF32), add(kBf16, 1, DType::kBF16);
  add(first, 64, DType::kF32);
  if (bf16) add(kBf16, 128, DType::kF32);
  const gemm::TwoFormats formats(targets, t, k, num_sms);
  const gemm::TwoFormatParams params = gemm::make_two_format_params(
      formats, targets, x, gemm::Activations{.x = x, .quantize = true}, make_map);
  const auto run = [&](auto config) {
    return [&params] { gemm::store_two_formats_kernel<decltype(config)>()(params); };
  };
  emulator::Kernel kernel{
      {.grid = {static_cast<int>(formats.ctas()), static_cast<int>(ceil_div(t, formats.tokens))},
       .block = gemm::kThreads,
       .cluster = formats.split.q8.ranks(),
       .shared = static_cast<size_t>(formats.shared()),
       .pdl = true,
       .resident = 2},
      {}};
  gemm::with_q8_config(formats.q8.format, formats.tokens,
                       [&](auto config) { kernel.body = run(config); });
  emulator::check_runs(
      arena, 3,
      [&](int seed) {
        emulator::launch_stream({emulator::touching({x}), kernel, kernel},
                                static_cast<uint64_t>(seed));
      },
      [&] {
        for (size_t i = 0; i < targets.size(); ++i)
          EXPECT_EQ(test::compare(targets[i].out, want[i], tolerated[i]), "") << i;
      });
}

TEST(SmallMEmulated, TwoFormats) {
  check_two_formats(2, 30, true);
  check_two_formats(9, 1, true);
  check_two_formats(3, 4, false);
}

// Ranks of unequal shares; 9 tokens are two tiles of both formats.
TEST(SmallMEmulated, BitPlanesBesideBf16) {
  check_two_formats(1, 30, true, kKbit5, 768);
  check_two_formats(2, 4, true, kKbit4, 2560);
  check_two_formats(7, 2, true, kKbit5, 1024);
  check_two_formats(9, 1, true, kKbit5, 256);
  check_two_formats(3, 4, false, kKbit4, 512);
}

constexpr int kSms = 8;

// A boundary and products of its x: by mix, finish and the products, or by mix and the kernel that
// finishes the boundary itself.
struct BoundaryScene {
  int64_t t, d;
  bool first = false;
  test::StoredAs q8 = kFp8;  // what takes Q8 of x
};

struct BoundaryCase {
  Arena arena;
  HcBoundaryArgs boundary;
  std::vector<gemm::Target> targets;

  explicit BoundaryCase(const BoundaryScene& s) {
    Rng rng(static_cast<uint64_t>(s.t * 100 + s.d));
    boundary = test::random_boundary(arena, rng, {.t = s.t, .d = s.d, .first = s.first});
    const auto add = [&](const test::StoredAs& stored, int64_t n, DType out) {
      targets.push_back(
          {test::random_weight(arena, rng, stored, n, s.d), arena.output(out, {s.t, n})});
    };
    add(s.q8, 70, DType::kBF16);
    add(kBf16, 65, DType::kF32);
    add(s.q8, 20, DType::kF32);
  }
};

void run_boundary(const BoundaryCase& c, bool in_one, uint64_t seed) {
  namespace hc = hc_boundary_kernel::sm90_few;
  const HcBoundaryArgs& b = c.boundary;
  const auto t = static_cast<int>(b.x.dim(0)), d = static_cast<int>(b.x.dim(1));
  const auto slices = static_cast<int>(hc::num_slices(b));
  std::vector<float> partial(static_cast<size_t>(t * hc::kSums * slices), NAN);
  const hc::Params p = hc::make_params(b, partial.data());
  const gemm::TwoFormats formats(c.targets, t, d, kSms, in_one ? gemm::boundary_bytes(t, d) : 0);
  const gemm::WithBoundary<gemm::TwoFormatParams> params{
      gemm::make_two_format_params(formats, c.targets, b.x,
                                   gemm::Activations{.x = b.x, .quantize = true}, make_map),
      p};
  emulator::Launch products{.grid = static_cast<int>(formats.ctas()),
                            .block = gemm::kThreads,
                            .cluster = formats.split.q8.ranks(),
                            .shared = static_cast<size_t>(formats.shared()),
                            .pdl = true,
                            .resident = 2};
  using Q8 = gemm::StoreTile<gemm::TwoFormatParams::Q8>;
  using Bf16 = gemm::StoreTile<gemm::TwoFormatParams::Bf16>;
  std::vector<ConstTensorView> inputs{b.streams}, outputs{b.streams, b.x, b.post, b.comb};
  for (const ConstTensorView& view : {b.y, b.y_post, b.y_comb})
    if (view.rank > 0) inputs.push_back(view);
  for (const gemm::Target& target : c.targets) outputs.push_back(target.out);
  std::vector<emulator::Kernel> kernels{
      emulator::touching(inputs),
      {{.grid = {slices, t}, .block = hc::kMixWarps * kWarp, .pdl = true, .resident = 3},
       [&] { hc::mix_kernel<1, bf16>(p); }}};
  if (in_one) {
    products.grid.x += products.cluster;
    emulator::Kernel& kernel = kernels.emplace_back(products, std::function<void()>{});
    gemm::with_boundary_config(formats.q8.format, formats.tokens, [&](auto config) {
      kernel.body = [&params] {
        gemm::boundary_kernel<decltype(config), gemm::TwoFormatParams, Q8, Bf16>(params);
      };
    });
  } else {
    kernels.push_back({{.grid = {t, 2}, .block = d / hc::kRun, .pdl = true, .resident = 2},
                       [&] { hc::finish_kernel<bf16>(p); }});
    emulator::Kernel& kernel = kernels.emplace_back(products, std::function<void()>{});
    gemm::with_q8_config(formats.q8.format, formats.tokens, [&](auto config) {
      kernel.body = [&params] {
        gemm::store_two_formats_kernel<decltype(config)>()(params.formats);
      };
    });
  }
  kernels.push_back(emulator::touching(outputs));
  emulator::launch_stream(kernels, seed);
}

void check_boundary(const BoundaryScene& s) {
  SCOPED_TRACE(fmt::format("{} tokens of {}, {}", s.t, s.d, name(s.q8)));
  BoundaryCase c(s);
  const HcBoundaryArgs& b = c.boundary;
  const gemm::TwoFormats formats(c.targets, s.t, s.d, kSms, gemm::boundary_bytes(s.t, s.d));
  ASSERT_EQ(gemm::reject_boundary(s.t, s.d, formats), nullptr);
  HcBoundaryWant want = hc_boundary_oracle(b);
  for (double& v : want.x) v = oracle::bf16(v);
  // Both ways have the same bits.
  emulator::check_runs(
      c.arena, 6, [&](int seed) { run_boundary(c, seed % 3 != 2, static_cast<uint64_t>(seed)); },
      [&] {
        // Tolerances: hc_boundary_test.cc.
        EXPECT_EQ(test::compare(b.x, want.x, {.ulps = 1.01, .rel = 0x1p-8, .cosine = 2e-7}), "");
        EXPECT_EQ(test::compare(b.comb, want.comb, {.ulps = 4, .abs = 1e-4}), "");
        for (const gemm::Target& target : c.targets) {
          const LinearArgs args{.x = b.x,
                                .weight = target.weight,
                                .out = target.out,
                                .quantize_x = gemm::TwoFormats::takes_q8(target)};
          EXPECT_EQ(test::compare(target.out, linear_oracle(args), tolerance(args)), "");
        }
      });
}

// One to eight groups of columns a rank, one to four tokens.
TEST(SmallMEmulated, FinishesABoundary) {
  check_boundary({.t = 4, .d = 1024, .first = true});
  check_boundary({.t = 1, .d = 2048});
  check_boundary({.t = 3, .d = 7168});
}
// Each rank holds one to three slabs of bit planes.
TEST(SmallMEmulated, FinishesABoundaryBeforeBitPlanes) {
  check_boundary({.t = 1, .d = 2048, .q8 = kKbit5});
  check_boundary({.t = 2, .d = 4096, .first = true, .q8 = kKbit4});
  check_boundary({.t = 4, .d = 6144, .q8 = kKbit5});
}

}  // namespace
}  // namespace dsv4
