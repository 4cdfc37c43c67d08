// Implementation sm90_grouped of experts.h on the emulator: lists, rows, gate and up, down, as a
// stream of kernels.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/ops/gemm/sm90/grouped/kernel.cuh"
#include "dsv4/ops/parts/experts/experts_case.h"
#include "dsv4/ops/parts/experts/images_case_test.h"
#include "dsv4/ops/parts/experts/sm90_grouped/call.cuh"
#include "tests/emulator/launch.h"
#include "tests/emulator/runs.h"

namespace dsv4 {
namespace {

namespace grouped = gemm::grouped;
namespace sm90_grouped = experts_kernel::sm90_grouped;
using test::ImagesCase;
using test::ImagesShape;

struct Run {
  uint64_t seed;
  int ctas;
};
constexpr Run kRuns[] = {{0, 2}, {1, 3}, {2, 1}, {3, 5}};

// All CTAs run at the same time.
template <class Weights>
emulator::Kernel products(const grouped::Params& p, const Run& how) {
  return {{.grid = how.ctas,
           .block = grouped::kThreads,
           .shared = sizeof(grouped::Shared<Weights>),
           .resident = how.ctas},
          [p] { grouped::grouped_kernel<Weights>(p); }};
}

// acc[t] += y of the pairs of token t, which are in order of expert.
void combine(const ExpertsArgs& args, const sm90_grouped::Call& call) {
  const int64_t k = slots(args);
  for (int64_t t = 0; t < args.x.dim(0); ++t) {
    std::vector<int32_t> pairs(call.lists.slot_of + t * k, call.lists.slot_of + (t + 1) * k);
    std::sort(pairs.begin(), pairs.end());
    for (const int32_t pair : pairs)
      for (int64_t i = 0; i < args.x.dim(1); ++i)
        args.acc.row<float>(t)[i] += bf16_to_f32(call.y.row<uint16_t>(pair)[i]);
  }
}

template <int K>
void run_emulated(const ExpertsArgs& args, const Run& how) {
  using Weights = gemm::KbitImageScaled<K>;
  Scratch scratch;
  const sm90_grouped::Call call = sm90_grouped::make_call(args, scratch);
  const emulator::Launch list{
      .grid = call.lists.ctas, .block = sm90_grouped::kListThreads, .pdl = true};
  emulator::launch_stream(
      {{list, [&] { sm90_grouped::count_kernel(call.choices, call.lists); }},
       {list, [&] { sm90_grouped::place_kernel(call.choices, call.lists); }},
       {{.grid = static_cast<int>(args.x.dim(0)), .block = sm90_grouped::kRowThreads, .pdl = true},
        [&] { sm90_grouped::rows_kernel(call.rows); }},
       products<Weights>(call.products, how)},
      how.seed);
  combine(args, call);
}

template <int K>
void check(const ImagesShape& s) {
  SCOPED_TRACE(fmt::format("K={} t={} k={} e={} d={} i={}", K, s.t, s.k, s.e, s.d, s.inner));
  ImagesCase c(s, K, K);
  const std::vector<double> want = experts_oracle({}, c.file_args);
  emulator::check_runs(
      c.arena, static_cast<int>(std::size(kRuns)),
      [&](int i) { run_emulated<K>(c.args, kRuns[i]); },
      [&] { EXPECT_EQ(test::compare(c.args.acc, want, {.rel = 0.02, .cosine = 5e-6}), ""); });
}

// acc, which was zero, after the first `tokens` tokens.
template <int K>
std::vector<float> result_of(const ImagesCase& c, int64_t tokens, const Run& how) {
  ExpertsArgs args = c.args;
  const TensorView acc = c.args.acc.slice(0, 0, tokens);
  args.x = args.x.slice(0, 0, tokens), args.acc = acc;
  args.experts = args.experts.slice(0, 0, tokens), args.weights = args.weights.slice(0, 0, tokens);
  std::fill_n(acc.as<float>(), acc.numel(), 0.f);
  run_emulated<K>(args, how);
  return {acc.as<float>(), acc.as<float>() + acc.numel()};
}

TEST(ExpertsGroupedEmulated, EveryK) {
  check<2>({.t = 3, .k = 2, .e = 4, .d = 288, .inner = 96});
  check<3>({.t = 9, .k = 3, .e = 4, .d = 544, .inner = 352});
  check<4>({.t = 1, .k = 6, .e = 9, .d = 256, .inner = 64});
  check<5>({.t = 5, .k = 2, .e = 3, .d = 96, .inner = 160});
}

// Tiles of every number of columns, and two to three tiles of an expert.
TEST(ExpertsGroupedEmulated, TilesOfEverySize) {
  for (const int64_t t : {1, 16, 17, 40, 64, 70, 90, 100, 113, 128, 129, 200, 257})
    check<3>({.t = t, .k = 1, .e = 3, .d = 96, .inner = 32, .only = 1});
}

// Two CTAs list 1,100 pairs.
TEST(ExpertsGroupedEmulated, PairsOfSeveralLists) {
  check<2>({.t = 550, .k = 2, .e = 7, .d = 32, .inner = 32});
}

// Several tiles of rows, several units, an item that ends in the middle of a row tile.
TEST(ExpertsGroupedEmulated, SeveralRowTiles) {
  check<3>({.t = 7, .k = 2, .e = 3, .d = 800, .inner = 288});
}

TEST(ExpertsGroupedEmulated, BitsDoNotDependOnTheBatch) {
  const ImagesCase c({.t = 150, .k = 1, .e = 2, .d = 288, .inner = 96, .only = 1}, 3, 3);
  const std::vector<float> together = result_of<3>(c, 150, kRuns[1]);
  for (const int64_t tokens : {1, 2, 17, 100}) {
    const std::vector<float> few = result_of<3>(c, tokens, kRuns[0]);
    EXPECT_TRUE(std::equal(few.begin(), few.end(), together.begin())) << tokens;
  }
}

}  // namespace
}  // namespace dsv4
