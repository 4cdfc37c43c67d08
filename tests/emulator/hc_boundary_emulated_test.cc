// Implementation sm90_few of hc_boundary.h on the emulator: both kernels launched early, between a
// kernel that writes their inputs and one that reads their outputs, against the oracle.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/ops/model/hc_boundary/hc_boundary_oracle.h"
#include "dsv4/ops/model/hc_boundary/sm90_few/finish.cuh"
#include "dsv4/ops/model/hc_boundary/sm90_few/mix.cuh"
#include "dsv4/ops/oracle.h"
#include "dsv4/ops/parts/quant/quant_case.h"
#include "tests/emulator/launch.h"
#include "tests/emulator/runs.h"
#include "tests/emulator/touching.h"

namespace dsv4 {
namespace {

namespace few = hc_boundary_kernel::sm90_few;
using emulator::touching;
using test::Arena;

struct Case {
  int64_t t, d;
  bool first = false;
  DType y_dtype = DType::kBF16, norm_dtype = DType::kBF16;
};

TensorView normal_input(Arena& arena, Rng& rng, DType dtype, std::initializer_list<int64_t> shape,
                        double sigma = 1.0) {
  const TensorView view = arena.input(dtype, shape);
  test::fill_normal(view, rng, sigma);
  return view;
}

HcBoundaryArgs make_args(Arena& arena, const Case& c) {
  Rng rng(static_cast<uint64_t>(c.t * 100 + c.d));
  const int64_t m = few::kStreams;
  const double sigma = 1 / std::sqrt(static_cast<double>(m * c.d));
  const TensorView streams = arena.inout(DType::kBF16, {c.t, m, c.d});
  test::fill_normal(streams, rng, 2.0);
  HcBoundaryArgs args{
      .hc = {.fn = normal_input(arena, rng, DType::kF32, {few::kMixes, m * c.d}, 3 * sigma),
             .base = normal_input(arena, rng, DType::kF32, {few::kMixes}),
             .scale = normal_input(arena, rng, DType::kF32, {3})},
      .norm = normal_input(arena, rng, c.norm_dtype, {c.d}),
      .streams = streams,
      .x = arena.output(DType::kBF16, {c.t, c.d}),
      .post = arena.output(DType::kF32, {c.t, m}),
      .comb = arena.output(DType::kF32, {c.t, m, m})};
  if (c.first) return args;
  args.y = normal_input(arena, rng, c.y_dtype, {c.t, c.d});
  args.y_post = normal_input(arena, rng, DType::kF32, {c.t, m}, 0.5);
  args.y_comb = normal_input(arena, rng, DType::kF32, {c.t, m, m}, 0.5);
  return args;
}

// Q8 of x, which finish stores where its caller wants it; rank 0: not wanted.
struct Codes {
  TensorView codes, scales;
};

template <int kTokens, class Y, class W>
void run_emulated(const HcBoundaryArgs& args, const Codes& q8, uint64_t seed) {
  const auto t = static_cast<int>(args.streams.dim(0)), d = static_cast<int>(args.streams.dim(2));
  const auto slices = static_cast<int>(few::num_slices(args));
  std::vector<float> partial(static_cast<size_t>(t * few::kSums * slices), NAN);
  few::Params p = few::make_params(args, partial.data());
  std::vector<ConstTensorView> inputs = {args.streams};
  std::vector<ConstTensorView> outputs = {args.streams, args.x, args.post, args.comb};
  if (q8.codes.rank > 0) {
    p.codes = q8.codes.as<uint8_t>(), p.code_scales = q8.scales.as<uint8_t>();
    outputs.insert(outputs.end(), {q8.codes, q8.scales});
  }
  for (const ConstTensorView& view : {args.y, args.y_post, args.y_comb})
    if (view.rank > 0) inputs.push_back(view);
  emulator::launch_stream({touching(inputs),
                           {{.grid = {slices, (t + kTokens - 1) / kTokens},
                             .block = few::kMixWarps * kWarp,
                             .pdl = true,
                             .resident = 3},
                            [&] { few::mix_kernel<kTokens, Y>(p); }},
                           {{.grid = {t, 2}, .block = d / few::kRun, .pdl = true, .resident = 2},
                            [&] { few::finish_kernel<W>(p); }},
                           touching(outputs)},
                          seed);
}

// Tolerances: hc_boundary_test.cc. The bits do not depend on how many tokens a CTA of mix has.
template <class Y = bf16, class W = bf16>
void check(const Case& c) {
  Arena arena;
  const HcBoundaryArgs args = make_args(arena, c);
  Codes q8;
  if (c.t > 1) {
    q8 = {.codes = arena.output(DType::kE4M3, {c.t, c.d}),
          .scales = arena.output(DType::kE8M0, {c.t, c.d / few::kGroup})};
  }
  HcBoundaryWant want = hc_boundary_oracle(args);
  for (double& v : want.x) v = oracle::bf16(v);
  SCOPED_TRACE(fmt::format("{} tokens of {}", c.t, c.d));
  emulator::check_runs(
      arena, 4,
      [&](int i) {
        const auto seed = static_cast<uint64_t>(i);
        i % 3 == 0   ? run_emulated<8, Y, W>(args, q8, seed)
        : i % 3 == 1 ? run_emulated<1, Y, W>(args, q8, seed)
                     : run_emulated<4, Y, W>(args, q8, seed);
      },
      [&] {
        EXPECT_EQ(test::compare(args.streams, want.streams, {.ulps = 0.51, .rel = 5e-6}), "");
        EXPECT_EQ(test::compare(args.x, want.x, {.ulps = 1.01, .rel = 0x1p-8, .cosine = 2e-7}), "");
        EXPECT_EQ(test::compare(args.post, want.post, {.ulps = 4, .abs = 1e-4}), "");
        EXPECT_EQ(test::compare(args.comb, want.comb, {.ulps = 4, .abs = 1e-4}), "");
        if (q8.codes.rank == 0) return;
        const QuantizeQ8Want codes = quantize_q8_oracle(
            {.x = args.x, .codes = q8.codes, .scales = q8.scales, .group = few::kGroup});
        EXPECT_EQ(test::compare(q8.codes, codes.codes, {.ulps = 0}), "");
        EXPECT_EQ(test::compare(q8.scales, codes.scales, {.ulps = 0}), "");
      });
}

TEST(HcBoundaryEmulated, AgreesWithOracle) {
  check({.t = 1, .d = 256});
  check({.t = 3, .d = 512});
  check<bf16, float>({.t = 9, .d = 256, .first = true, .norm_dtype = DType::kF32});
  check<float>({.t = 2, .d = 768, .y_dtype = DType::kF32});
}

// More than 128 slices: two loads per lane.
TEST(HcBoundaryEmulated, ManySlices) {
  check({.t = 1, .d = 4352});
}

}  // namespace
}  // namespace dsv4
