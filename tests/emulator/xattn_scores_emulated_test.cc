// Implementation sm90 of xattn_scores.h on the emulator, on several grids: bits depend neither on
// the order of events nor on how items are spread over clusters.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "dsv4/base/error.h"
#include "dsv4/ops/xattn/scores/sm90/kernel.cuh"
#include "dsv4/ops/xattn/scores/sm90/params.cuh"
#include "dsv4/ops/xattn/scores/xattn_scores_case.h"
#include "tests/emulator/launch.h"
#include "tests/emulator/runs.h"
#include "tests/emulator/tensor_map.h"

namespace dsv4 {
namespace {

namespace sm90 = xattn_scores_kernel::sm90;
using test::Arena;
using test::ScoresScene;

struct Run {
  uint64_t seed;
  int64_t num_sms;
};
constexpr Run kRuns[] = {{0, 2}, {1, 2}, {2, 4}, {3, 2}, {5, 1000}};

template <class C>
void run_emulated(const XattnScoresArgs& args, const Run& how) {
  const auto ctas = static_cast<size_t>(sm90::max_ctas(how.num_sms, args));
  const auto rows = static_cast<size_t>(sm90::kRows);
  // NaN, as far as the kernel has not written it.
  std::vector<float> partials(ctas * rows * static_cast<size_t>(sm90::partial_stride(args)), NAN);
  std::vector<float> maxima(ctas * rows * static_cast<size_t>(sm90::column_tiles(args)), NAN);
  std::memset(args.sums.data, 0, static_cast<size_t>(args.sums.bytes()));
  const sm90::Params params =
      sm90::make_params<C>(args, partials.data(), maxima.data(),
                           [](const TmaBox& box) { return emulator::make_tma_map(box); });
  emulator::launch({.grid = static_cast<int>(ctas),
                    .block = sm90::kThreads,
                    .cluster = static_cast<int>(sm90::cluster_size(args)),
                    .shared = sizeof(sm90::Shared),
                    .seed = how.seed,
                    .resident = 2},
                   [&] { sm90::score_kernel<C>(params); });
}

template <int kGroups, class T = bf16>
void check(const ScoresScene& scene) {
  ASSERT_EQ(scene.block / scene.stride, kGroups);
  Arena arena;
  Rng rng(static_cast<uint64_t>(scene.lengths[0].queries * 1000 + scene.lengths[0].keys));
  const XattnScoresArgs args = test::random_scores(arena, rng, scene);
  SCOPED_TRACE(fmt::format("q {} {} keys, S {}, block {}", to_string(args.q), scene.lengths[0].keys,
                           scene.stride, scene.block));
  const std::vector<double> want = xattn_scores_oracle(args);
  emulator::check_runs(
      arena, static_cast<int>(std::size(kRuns)),
      [&](int i) { run_emulated<sm90::Config<T, kGroups>>(args, kRuns[i]); },
      [&] { EXPECT_EQ(test::compare(args.sums, want, {.ulps = 400, .abs = 2e-6}), ""); });
}

// Heads 2 of key head 1: clusters of two CTAs.
TEST(XattnScoresEmulated, EveryNumberOfGroups) {
  check<32>({.lengths = {{140, 260}}, .stride = 4, .d = 64});
  check<16>({.lengths = {{200, 330}}, .stride = 8, .d = 64});
  check<8>({.lengths = {{530, 1260}}, .stride = 16, .d = 64});
  check<4>({.lengths = {{300, 1000}}, .stride = 32, .d = 64});
  check<2>({.lengths = {{300, 900}}, .stride = 64, .d = 64});
}

TEST(XattnScoresEmulated, BlocksOf64) {
  check<16>({.lengths = {{140, 330}}, .stride = 4, .d = 64, .block = 64});
  check<4>({.lengths = {{140, 330}}, .stride = 16, .d = 64, .block = 64});
}

// More than one tile of columns and of rows, and items of other lengths in between.
TEST(XattnScoresEmulated, SeveralTiles) {
  check<32>({.lengths = {{700, 1500}, {130, 130}}, .stride = 4, .d = 64});
  check<16>({.lengths = {{130, 130}, {0, 40}, {1, 301}, {203, 129}},
             .stride = 8,
             .heads = 4,
             .kv_heads = 2,
             .d = 64});
}

TEST(XattnScoresEmulated, OneCtaWideHeadsNotCausal) {
  check<16>({.lengths = {{150, 300}}, .causal = false, .heads = 3, .kv_heads = 1, .d = 64});
  check<8, f16>(
      {.lengths = {{150, 300}}, .stride = 16, .heads = 1, .d = 128, .dtype = DType::kF16});
}

TEST(XattnScoresEmulated, Pages) {
  check<16>({.lengths = {{200, 330}, {129, 129}}, .d = 64, .page_size = 64});
  check<32>({.lengths = {{140, 700}}, .causal = false, .stride = 4, .d = 64, .page_size = 256});
}

}  // namespace
}  // namespace dsv4
