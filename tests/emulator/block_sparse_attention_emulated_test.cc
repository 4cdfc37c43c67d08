// Implementation sm90 of block_sparse_attention.h on the emulator. Bits may depend neither on the
// order of events nor on the previous work tiles of a CTA, so every case runs on several grids.

#include <gtest/gtest.h>

#include <algorithm>

#include "dsv4/base/error.h"
#include "dsv4/ops/xattn/attention/block_sparse_attention_case.h"
#include "dsv4/ops/xattn/attention/sm90/kernel.cuh"
#include "dsv4/ops/xattn/attention/sm90/params.cuh"
#include "tests/emulator/launch.h"
#include "tests/emulator/runs.h"
#include "tests/emulator/tensor_map.h"

namespace dsv4 {
namespace {

namespace sm90 = block_sparse_attention_kernel::sm90;
using test::Arena;
using test::AttentionScene;

struct Run {
  uint64_t seed;
  int64_t num_sms;
};
// All work tiles in one CTA, two CTAs side by side, and one CTA per work tile.
constexpr Run kRuns[] = {{0, 1}, {1, 1}, {2, 2}, {3, 2}, {5, 1000}};

template <class C>
void run_emulated(const BlockSparseAttentionArgs& args, const Run& how) {
  int counter = 0;
  const sm90::Params params = sm90::make_params<C>(
      args, &counter, [](const TmaBox& box) { return emulator::make_tma_map(box); });
  emulator::launch({.grid = static_cast<int>(std::min(sm90::items_of(args), how.num_sms)),
                    .block = sm90::kThreads,
                    .shared = sizeof(sm90::Shared<C>),
                    .seed = how.seed,
                    .resident = 2},
                   [&] { sm90::attend_kernel<C>(params); });
}

template <class C>
void check(const AttentionScene& scene) {
  Arena arena;
  Rng rng(static_cast<uint64_t>(scene.lengths[0].queries * 1000 + scene.lengths[0].keys));
  const BlockSparseAttentionArgs args = test::random_attention(arena, rng, scene);
  SCOPED_TRACE(fmt::format("q {} {} keys, density {}", to_string(args.q), scene.lengths[0].keys,
                           scene.density));
  const BlockSparseAttentionWant want = block_sparse_attention_oracle(args);
  emulator::check_runs(
      arena, static_cast<int>(std::size(kRuns)), [&](int i) { run_emulated<C>(args, kRuns[i]); },
      [&] {
        EXPECT_EQ(test::compare(args.out, want.out, {.ulps = 1.5, .abs = 2e-6, .rel = 0x1p-8}), "");
        EXPECT_EQ(test::compare(args.lse, want.lse, {.ulps = 8, .abs = 4e-6}), "");
      });
}

using D64 = sm90::Config<bf16, 64, 64, 128, 4, 2>;
using D128 = sm90::Config<bf16, 128, 128, 128, 2, 2>;
using D192 = sm90::Config<f16, 192, 128, 128, 2, 1>;
using D256 = sm90::Config<bf16, 256, 256, 64, 2, 1>;

TEST(BlockSparseAttentionEmulated, Lists) {
  check<D64>({.lengths = {{300, 700}, {130, 130}}, .heads = 4, .kv_heads = 2, .d = 64, .d_v = 64});
  check<D128>({.lengths = {{200, 600}}, .density = 0.6});
}

TEST(BlockSparseAttentionEmulated, Dense) {
  check<D128>({.lengths = {{260, 400}}, .heads = 1, .density = 2});
  check<D64>({.lengths = {{70, 321}, {40, 40}}, .causal = false, .d = 64, .d_v = 64, .density = 2});
}

// One listed block, none at all, queries without keys.
TEST(BlockSparseAttentionEmulated, EmptyRows) {
  const std::vector<test::Lengths> lengths = {{130, 130}, {0, 40}, {1, 300}, {203, 129}};
  for (const double density : {0.0, 0.2}) {
    check<D64>(
        {.lengths = lengths, .heads = 2, .kv_heads = 2, .d = 64, .d_v = 64, .density = density});
  }
}

TEST(BlockSparseAttentionEmulated, Pages) {
  check<D64>({.lengths = {{200, 330}, {129, 129}}, .d = 64, .d_v = 64, .page_size = 16});
  check<D128>({.lengths = {{140, 300}}, .heads = 1, .density = 2, .page_size = 256});
}

TEST(BlockSparseAttentionEmulated, OtherWidths) {
  check<D192>({.lengths = {{140, 260}}, .heads = 1, .d = 192, .d_v = 128, .dtype = DType::kF16});
  check<D256>({.lengths = {{140, 190}}, .heads = 1, .d = 256, .d_v = 256, .density = 2});
}

}  // namespace
}  // namespace dsv4
