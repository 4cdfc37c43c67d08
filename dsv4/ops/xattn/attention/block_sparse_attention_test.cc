#include "dsv4/ops/xattn/attention/block_sparse_attention.h"

#include <cmath>
#include <limits>
#include <utility>

#include "dsv4/base/error.h"
#include "dsv4/ops/xattn/attention/block_sparse_attention_case.h"
#include "tests/harness/errors.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

using test::Arena;
using test::Lengths;
using Scene = test::AttentionScene;

void check(const Scene& scene, uint64_t seed = 1) {
  Arena arena;
  Rng rng(seed);
  const BlockSparseAttentionArgs args = test::random_attention(arena, rng, scene);
  test::OpCase<BlockSparseAttentionArgs> test{
      .name =
          fmt::format("block_sparse_attention {} of {} heads, d {}, {} sequences, density {}",
                      to_string(args.q), scene.heads, scene.d, scene.lengths.size(), scene.density),
      .args = args};
  BlockSparseAttentionWant want = block_sparse_attention_oracle(args);
  // f32: sums of d products and of the keys. Rounded P: 2^-9 of each summand, at random, is about
  // 2^-9 of a typical output.
  const bool rounded = scene.numerics == Numerics::kOfficial && scene.dtype != DType::kF32;
  test.outputs = {
      {"out", args.out, want.out, {.ulps = 1.5, .abs = 2e-6, .rel = rounded ? 0x1p-8 : 2e-6}},
      {"lse", args.lse, want.lse, {.ulps = 8, .abs = 4e-6}}};
  check_op(block_sparse_attention.impls, Context{.numerics = scene.numerics}, arena, test);
}

TEST(BlockSparseAttention, AgreesWithOracle) {
  // Queries and keys of Block-Sparse-Attention's own test; more queries than keys leave queries
  // without any key.
  for (const Lengths n : {Lengths{113, 203},
                          {128, 217},
                          {113, 211},
                          {108, 256},
                          {256, 512},
                          {512, 256},
                          {300, 299}}) {
    for (const bool causal : {true, false}) {
      check({.lengths = {n}, .causal = causal});
      check({.lengths = {n}, .causal = causal, .density = 2});
    }
  }
}

TEST(BlockSparseAttention, ShortLengths) {
  for (const int n : {1, 7, 8, 9, 127, 128, 129}) {
    check({.lengths = {{n, n}}, .density = 2});
    check({.lengths = {{n, n}}, .causal = false, .density = 0.7});
    check({.lengths = {{1, n}}, .density = 2});
  }
}

// Lengths that differ by every residue of 16 and some of 128.
TEST(BlockSparseAttention, AnyOffset) {
  for (int offset = 0; offset < 16; ++offset) {
    check({.lengths = {{130 + 3 * offset, 130 + 17 * offset}}, .heads = 1}, 2);
  }
}

TEST(BlockSparseAttention, BatchesOfAnyLengths) {
  const std::vector<Lengths> lengths = {{130, 130}, {0, 40},    {1, 300},
                                        {0, 0},     {200, 129}, {64, 192}};
  for (const double density : {0.0, 0.3, 1.0, 2.0}) {
    check({.lengths = lengths, .heads = 4, .kv_heads = 2, .density = density});
    check({.lengths = lengths, .causal = false, .heads = 4, .kv_heads = 4, .density = density});
  }
}

TEST(BlockSparseAttention, GroupsOfHeads) {
  for (const int64_t group : {1, 4, 7, 8}) {
    check({.lengths = {{200, 330}}, .heads = 2 * group, .kv_heads = 2, .density = 0.6});
  }
}

TEST(BlockSparseAttention, DtypesAndWidths) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Numerics numerics : {Numerics::kOfficial, Numerics::kExact}) {
      check({.lengths = {{140, 260}}, .dtype = dtype, .numerics = numerics});
      check({.lengths = {{140, 260}}, .d = 64, .d_v = 64, .dtype = dtype, .numerics = numerics});
    }
    check({.lengths = {{140, 260}}, .d = 192, .d_v = 128, .dtype = dtype});
    check({.lengths = {{140, 260}}, .d = 256, .d_v = 256, .dtype = dtype});
    check({.lengths = {{40, 70}}, .d = 20, .d_v = 12, .dtype = dtype});
  }
}

// Widths that have kernels of their own, through every way that a tile can be cut.
TEST(BlockSparseAttention, WidthsAtEdges) {
  for (const auto& [d, d_v] : {std::pair<int64_t, int64_t>{64, 64}, {192, 128}, {256, 256}}) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      check({.lengths = {{113, 203}, {129, 129}}, .d = d, .d_v = d_v, .dtype = dtype});
      check({.lengths = {{300, 299}}, .d = d, .d_v = d_v, .density = 2, .dtype = dtype});
      check({.lengths = {{70, 321}, {40, 40}},
             .causal = false,
             .d = d,
             .d_v = d_v,
             .density = 0.7,
             .dtype = dtype,
             .page_size = 64});
    }
    check({.lengths = {{140, 900}}, .d = d, .d_v = d_v, .density = 0.6, .page_size = 16});
  }
}

TEST(BlockSparseAttention, BlocksOf64) {
  check({.lengths = {{200, 330}, {65, 65}}, .density = 0.4, .block = 64});
  check({.lengths = {{200, 330}}, .causal = false, .density = 0.4, .block = 64});
}

TEST(BlockSparseAttention, Pages) {
  for (const int64_t page_size : {16, 64, 128, 256, 24}) {
    check({.lengths = {{200, 330}, {129, 129}}, .density = 0.6, .page_size = page_size});
  }
  check({.lengths = {{200, 330}}, .causal = false, .density = 2, .page_size = 64});
}

TEST(BlockSparseAttention, LongRows) {
  check({.lengths = {{130, 2050}}, .heads = 1, .density = 0.5});
  check({.lengths = {{1023, 1024}}, .heads = 1, .density = 0.2});
  check({.lengths = {{1024, 1023}}, .causal = false, .heads = 1, .density = 0.2});
}

// Rows of a sequence end in the middle of a block; the next sequence has NaN there.
TEST(BlockSparseAttention, IgnoresValuesPastASequence) {
  Arena arena;
  Rng rng(5);
  const Scene scene{.lengths = {{150, 200}, {10, 60}}, .density = 2};
  BlockSparseAttentionArgs args = test::random_attention(arena, rng, scene);
  const TensorView v = arena.input(scene.dtype, {260, 1, 128});
  test::fill_normal(v, rng);
  for (int64_t i = 200 * 128; i < v.numel(); ++i) {
    test::set_value(v, i, std::numeric_limits<double>::quiet_NaN());
  }
  args.v = v;
  test::OpCase<BlockSparseAttentionArgs> test{.name = "NaN after a sequence", .args = args};
  test.outputs = {{"out",
                   args.out,
                   block_sparse_attention_oracle(args).out,
                   {.ulps = 1.5, .abs = 2e-6, .rel = 0x1p-8, .cosine = 1}}};
  check_op(block_sparse_attention.impls, Context{}, arena, test);
}

TEST(BlockSparseAttention, SaysWhatIsWrong) {
  Arena arena;
  Rng rng(1);
  const BlockSparseAttentionArgs good =
      test::random_attention(arena, rng, {.lengths = {{300, 300}}, .d = 16, .d_v = 16});
  const auto error_with = [&](auto change) {
    BlockSparseAttentionArgs args = good;
    change(args);
    return test::error_of([&] { block_sparse_attention(Context{}, args); });
  };
  using test::says;
  EXPECT_TRUE(says(error_with([](auto& a) { a.block = 32; }), "block=32, not 64 or 128"));
  EXPECT_TRUE(says(error_with([](auto& a) { a.scale = 0; }), "scale=0"));
  EXPECT_TRUE(says(error_with([&](auto& a) {
                     a.k = arena.input(DType::kBF16, {300, 3, 16});
                   }),
                   "v: want [t_kv=300, h_kv=3, d_v] BF16, got [300, 1, 16] BF16"));
  EXPECT_TRUE(says(error_with([](auto& a) {
                     a.q = a.q.slice(0, 0, 299), a.out = a.out.slice(0, 0, 299), a.lse = {};
                   }),
                   "cu_q ends at 300, q has 299 rows"));
  EXPECT_TRUE(says(error_with([&](auto& a) {
                     const TensorView indices = arena.input(DType::kI32, {1, 2, 3, 3});
                     const TensorView counts = arena.input(DType::kI32, {1, 2, 3});
                     std::fill_n(counts.template as<int>(), 6, 2);
                     std::fill_n(indices.template as<int>(), 18, 0);
                     a.lists = {.counts = counts, .indices = indices};
                   }),
                   "is 0 after 0: not ascending"));
}

}  // namespace
}  // namespace dsv4
