// Implementations sm90_few and sm90_many of hc_boundary.h on the emulator: both kernels launched
// early, between a kernel that writes their inputs and one that reads their outputs, against the
// oracle.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/ops/model/hc_boundary/hc_boundary_case.h"
#include "dsv4/ops/model/hc_boundary/sm90_few/finish.cuh"
#include "dsv4/ops/model/hc_boundary/sm90_few/mix.cuh"
#include "dsv4/ops/model/hc_boundary/sm90_many/finish.cuh"
#include "dsv4/ops/model/hc_boundary/sm90_many/post_mix.cuh"
#include "dsv4/ops/oracle.h"
#include "dsv4/ops/parts/quant/quant_case.h"
#include "tests/emulator/launch.h"
#include "tests/emulator/runs.h"
#include "tests/emulator/touching.h"

namespace dsv4 {
namespace {

namespace few = hc_boundary_kernel::sm90_few;
namespace many = hc_boundary_kernel::sm90_many;
using emulator::touching;
using test::Arena;

using Case = test::HcBoundaryShape;

HcBoundaryArgs make_args(Arena& arena, const Case& c) {
  Rng rng(static_cast<uint64_t>(c.t * 100 + c.d));
  return test::random_boundary(arena, rng, c);
}

// The kernels between one that writes their inputs and one that reads their outputs.
void run_stream(const HcBoundaryArgs& args, const emulator::Kernel& first,
                const emulator::Kernel& second, uint64_t seed) {
  std::vector<ConstTensorView> inputs = {args.streams};
  std::vector<ConstTensorView> outputs = {args.streams, args.x, args.post, args.comb};
  if (args.codes.rank > 0) outputs.insert(outputs.end(), {args.codes, args.scales});
  for (const ConstTensorView& view : {args.y, args.y_post, args.y_comb})
    if (view.rank > 0) inputs.push_back(view);
  emulator::launch_stream({touching(inputs), first, second, touching(outputs)}, seed);
}

// walks: a CTA of mix takes several runs of kTokens tokens.
template <int kTokens, class Y, class W>
void run_few(const HcBoundaryArgs& args, uint64_t seed, bool walks = false) {
  const auto t = static_cast<int>(args.streams.dim(0)), d = static_cast<int>(args.streams.dim(2));
  const auto slices = static_cast<int>(few::num_slices(args));
  std::vector<float> partial(static_cast<size_t>(t * few::kSums * slices), NAN);
  const few::Params p = few::make_params(args, partial.data());
  run_stream(args,
             {{.grid = {slices, walks ? 2 : (t + kTokens - 1) / kTokens},
               .block = few::kMixWarps * kWarp,
               .pdl = true,
               .resident = 3},
              [&] { few::mix_kernel<kTokens, Y>(p); }},
             {{.grid = {t, 2}, .block = d / few::kRun, .pdl = true, .resident = 2},
              [&] { few::finish_kernel<W>(p); }},
             seed);
}

// sms: of the imagined GPU, which decides how many blocks of tokens a CTA walks over.
template <class Y, class W>
void run_many(const HcBoundaryArgs& args, int sms, uint64_t seed) {
  const auto t = static_cast<int>(args.streams.dim(0)), d = static_cast<int>(args.streams.dim(2));
  const int tiles = d / many::kColumns;
  std::vector<float> dots(static_cast<size_t>(tiles * t * few::kMixes), NAN);
  std::vector<float> squares(static_cast<size_t>(tiles * t), NAN);
  const many::ManyParams p{.call = few::make_params(args, nullptr),
                           .dots = dots.data(),
                           .squares = squares.data(),
                           .tiles = tiles,
                           .blocks = many::blocks_of_cta(t, tiles, sms)};
  const auto groups = static_cast<int>(ceil_div(t, p.blocks * many::kBlock));
  run_stream(args,
             {{.grid = {tiles, groups},
               .block = many::kPostMixThreads,
               .shared = sizeof(many::PostMixShared),
               .pdl = true,
               .resident = 2},
              [&] { many::post_mix_kernel<Y>(p); }},
             {{.grid = static_cast<int>(ceil_div(t, many::kFinishTokens)),
               .block = d / few::kRun + kWarp,
               .pdl = true,
               .resident = 2},
              [&] { many::finish_kernel<W, many::kMaxColumns>(p); }},
             seed);
}

// What the boundary computes from the X' that it has stored: an X' at a tie, which may round
// the other way than the oracle's, does not count.
HcBoundaryWant want_of_stored(HcBoundaryArgs args) {
  args.y = {}, args.y_post = {}, args.y_comb = {};
  HcBoundaryWant want = hc_boundary_oracle(args);
  for (double& v : want.x) v = oracle::bf16(v);
  return want;
}

// Tolerances of streams and x: hc_boundary_test.cc. run(args, i): the same bits for any i.
void check_stream(Case c, const std::function<void(const HcBoundaryArgs&, int)>& run) {
  Arena arena;
  c.codes = c.t > 1;
  const HcBoundaryArgs args = make_args(arena, c);
  const std::vector<double> streams = hc_boundary_oracle(args).streams;
  SCOPED_TRACE(fmt::format("{} tokens of {}", c.t, c.d));
  emulator::check_runs(
      arena, 4, [&](int i) { run(args, i); },
      [&] {
        EXPECT_EQ(test::compare(args.streams, streams, {.ulps = 0.51, .rel = 5e-6}), "");
        const HcBoundaryWant want = want_of_stored(args);
        EXPECT_EQ(test::compare(args.x, want.x, {.ulps = 1.01, .rel = 0x1p-8, .cosine = 2e-7}), "");
        EXPECT_EQ(test::compare(args.post, want.post, {.ulps = 4, .abs = 1e-5}), "");
        EXPECT_EQ(test::compare(args.comb, want.comb, {.ulps = 4, .abs = 1e-5}), "");
        if (args.codes.rank == 0) return;
        const QuantizeQ8Want codes = quantize_q8_oracle(
            {.x = args.x, .codes = args.codes, .scales = args.scales, .group = few::kGroup});
        EXPECT_EQ(test::compare(args.codes, codes.codes, {.ulps = 0}), "");
        EXPECT_EQ(test::compare(args.scales, codes.scales, {.ulps = 0}), "");
      });
}

// The bits do not depend on how many tokens a CTA of mix has.
template <class Y = bf16, class W = bf16>
void check(const Case& c) {
  check_stream(c, [](const HcBoundaryArgs& args, int i) {
    const auto seed = static_cast<uint64_t>(i);
    i % 3 == 0   ? run_few<8, Y, W>(args, seed, i % 2 == 1)
    : i % 3 == 1 ? run_few<1, Y, W>(args, seed, i % 2 == 1)
                 : run_few<4, Y, W>(args, seed, i % 2 == 1);
  });
}

// Nor on how many blocks of tokens a CTA of post_mix has.
template <class Y = bf16, class W = bf16>
void check_many(const Case& c) {
  check_stream(c, [&](const HcBoundaryArgs& args, int i) {
    run_many<Y, W>(args, i % 2 == 0 ? 1 : 132, static_cast<uint64_t>(i));
  });
}

TEST(HcBoundaryEmulated, AgreesWithOracle) {
  check({.t = 1, .d = 256});
  check({.t = 3, .d = 512});
  check<bf16, float>({.t = 9, .d = 256, .first = true, .norm = DType::kF32});
  check<float>({.t = 2, .d = 768, .y = DType::kF32});
  check({.t = 37, .d = 256});  // CTAs of mix that walk over runs of tokens
}

// More than 128 slices: two loads per lane.
TEST(HcBoundaryEmulated, ManySlices) {
  check({.t = 1, .d = 4352});
}

// One block of tokens, partial ones, and several of which a CTA walks over.
TEST(HcBoundaryEmulated, ManyTokens) {
  check_many({.t = 33, .d = 256});
  check_many<float, float>({.t = 64, .d = 512, .y = DType::kF32, .norm = DType::kF32});
  check_many({.t = 200, .d = 256, .first = true});
  check_many<float>({.t = 257, .d = 256, .y = DType::kF32});
}

// A token's bits do not depend on the others.
TEST(HcBoundaryEmulated, ManyTokensAlone) {
  const Case c{.t = 67, .d = 256};
  Arena arena;
  const HcBoundaryArgs args = make_args(arena, c);
  arena.freeze();
  arena.prepare();
  run_many<bf16, bf16>(args, 132, 0);
  const std::vector<std::byte> together = arena.written();
  arena.prepare();
  for (int64_t i = 0; i < c.t; ++i)
    run_many<bf16, bf16>(test::one_token(args, i), 132, static_cast<uint64_t>(i));
  arena.verify();
  EXPECT_TRUE(together == arena.written());
}

}  // namespace
}  // namespace dsv4
