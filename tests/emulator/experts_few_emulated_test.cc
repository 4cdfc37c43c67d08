// Implementation sm90_few of experts.h on the emulator: list of pairs, gate and up, down, as a
// stream of kernels that start early.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/ops/experts/experts_oracle.h"
#include "dsv4/ops/experts/images_case_test.h"
#include "dsv4/ops/experts/sm90_few/call.cuh"
#include "dsv4/ops/experts/sm90_few/kernel.cuh"
#include "dsv4/ops/experts/sm90_few/list_pairs.cuh"
#include "tests/emulator/launch.h"
#include "tests/emulator/runs.h"

namespace dsv4 {
namespace {

using experts_few::Params;
using test::ImagesCase;
using test::ImagesShape;

struct Run {
  uint64_t seed;
  int ctas;
};
constexpr Run kRuns[] = {{0, 2}, {1, 3}, {2, 1}, {3, 5}};

template <int K, bool kGateUp>
emulator::Kernel kernel(const Params& p, const Run& how) {
  return {{.grid = how.ctas,
           .block = experts_few::kThreads,
           .shared = sizeof(experts_few::Shared<K>),
           .pdl = true,
           .resident = 2},
          [p] { experts_few::few_kernel<K, kGateUp>(p); }};
}

// acc[t] += y of the pairs of token t, which are in order of expert.
void combine(const ExpertsArgs& args, const experts_few::Call& call) {
  const int64_t k = slots(args);
  for (int64_t t = 0; t < args.x.dim(0); ++t) {
    std::vector<int32_t> pairs(call.lists.pair_of + t * k, call.lists.pair_of + (t + 1) * k);
    std::sort(pairs.begin(), pairs.end());
    for (const int32_t pair : pairs)
      for (int64_t i = 0; i < args.x.dim(1); ++i)
        args.acc.row<float>(t)[i] += bf16_to_f32(call.y.row<uint16_t>(pair)[i]);
  }
}

template <int K>
void run_emulated(const ExpertsArgs& args, const Run& how) {
  Scratch scratch;
  const experts_few::Call call = experts_few::make_call(args, how.ctas, scratch);
  const experts_few::Choices choices{.experts = args.experts.as<int32_t>(),
                                     .weights = args.weights.as<float>(),
                                     .expert_stride = args.experts.row_stride(),
                                     .weight_stride = args.weights.row_stride(),
                                     .pairs = static_cast<int>(args.x.dim(0) * slots(args)),
                                     .slots = static_cast<int>(slots(args))};
  const experts_few::PairLists lists = call.lists;
  emulator::launch_stream({{{.block = experts_few::kListThreads, .pdl = true},
                            [=] { experts_few::list_pairs_kernel(choices, lists); }},
                           kernel<K, true>(call.gate_up, how),
                           kernel<K, false>(call.down, how)},
                          how.seed);
  combine(args, call);
}

template <int K>
void check(const ImagesShape& shape) {
  SCOPED_TRACE(fmt::format("K={} t={} k={} e={} d={} i={}", K, shape.t, shape.k, shape.e, shape.d,
                           shape.inner));
  ImagesCase c(shape, K, K);
  const std::vector<double> want = experts_oracle({}, c.file_args);
  emulator::check_runs(
      c.arena, static_cast<int>(std::size(kRuns)),
      [&](int i) { run_emulated<K>(c.args, kRuns[i]); },
      [&] { EXPECT_EQ(test::compare(c.args.acc, want, {.rel = 0.02, .cosine = 5e-6}), ""); });
}

TEST(ExpertsFewEmulated, EveryK) {
  check<2>({.t = 3, .k = 2, .e = 4, .d = 288, .inner = 96});
  check<3>({.t = 9, .k = 3, .e = 4, .d = 544, .inner = 352});
  check<4>({.t = 1, .k = 6, .e = 9, .d = 256, .inner = 64});
  check<5>({.t = 5, .k = 2, .e = 3, .d = 96, .inner = 160});
}

// 16 chunks in gate and up: a strip a stage, and more stages than the ring has.
TEST(ExpertsFewEmulated, WideRows) {
  check<3>({.t = 2, .k = 2, .e = 3, .d = 4096, .inner = 64});
}

// Entries of 1, 8 and 9 pairs of one expert.
TEST(ExpertsFewEmulated, AllTokensToOneExpert) {
  for (const int64_t t : {1, 8, 9, 17})
    check<3>({.t = t, .k = 1, .e = 5, .d = 160, .inner = 96, .only = 3});
}

}  // namespace
}  // namespace dsv4
