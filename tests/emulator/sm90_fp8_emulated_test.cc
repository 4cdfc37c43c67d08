// Implementation sm90_fp8 of sparse_mla.h on the emulator: against the oracle, and the same bits in
// any order of events.

#include <gtest/gtest.h>

#include <optional>

#include "dsv4/base/error.h"
#include "dsv4/ops/model/sparse_mla/sm90_fp8/kernel.cuh"
#include "dsv4/ops/model/sparse_mla/sm90_fp8/launch.cuh"
#include "tests/emulator/launch.h"
#include "tests/emulator/sparse_mla_check.h"
#include "tests/emulator/touching.h"

namespace dsv4 {
namespace {

namespace sm90_fp8 = sparse_mla_kernel::sm90_fp8;
using sm90_fp8::Plan;
using test::Arena;
using test::Outputs;
using test::Shape;

constexpr int kSeeds = 4;

emulator::Kernel kernel_of(const SparseMlaArgs& args, const Plan& plan, int num_sms) {
  const sm90_fp8::Params p = sm90_fp8::make_params(args, plan);
  const sm90_fp8::Instance instance = sm90_fp8::select_instance(p, sm90_fp8::is_v32(args), plan);
  return {{.grid = static_cast<int>(sm90_fp8::num_ctas(p, num_sms)),
           .block = sm90_fp8::kThreads,
           .cluster = plan.num_splits,
           .shared = static_cast<size_t>(instance.smem_bytes),
           .pdl = true},
          [=] { instance.kernel(p); }};
}

void run_emulated(const SparseMlaArgs& args, const Plan& plan, int num_sms, uint64_t seed) {
  emulator::Kernel kernel = kernel_of(args, plan, num_sms);
  kernel.launch.seed = seed;
  emulator::launch(kernel.launch, kernel.body);
}

struct Case {
  Shape shape;
  Plan plan;
  int num_sms = 1;  // of the GPU: CTAs of a grid without splits
  bool max_logits = false;
  std::optional<test::Large> large{};
  float sharpness = 1.f;  // factor for the softmax scale
};

// In both KV formats.
void check(Case test) {
  test.shape.dtype = DType::kBF16;
  test.shape.d_v = 512;
  for (const KvLayout& layout : {KvLayout{}, kV32Layout}) {
    test.shape.layout = layout;
    Arena arena;
    Rng rng(static_cast<uint64_t>(test.shape.h * 1000 + test.shape.window * 10));
    Outputs whole;
    SparseMlaArgs args = test::make_args(arena, rng, test.shape, whole);
    if (!test.max_logits) args.max_logits = {};
    args.scale *= test.sharpness;
    if (test.large) test::put_large(*test.large, args);
    SCOPED_TRACE(fmt::format("q {} heads {} split_keys {}", to_string(args.q), test.plan.heads,
                             test.plan.split_keys));
    emulator::check_runs(arena, args, whole, kSeeds, [&](int seed) {
      run_emulated(args, test.plan, test.num_sms, static_cast<uint64_t>(seed));
    });
  }
}

TEST(Sm90Fp8Emulated, CtasOfEverySize) {
  for (const int heads : {8, 16, 32, 64}) {
    const Plan plan{.heads = heads, .split_keys = 192};
    // One query per CTA and both lists; then several queries, and a single key tile.
    check({.shape = {.t = 1, .h = heads, .window = 70, .compressed = 100},
           .plan = plan,
           .num_sms = 2});
    check({.shape = {.t = 2, .h = heads + 3, .window = 33, .compressed = 20, .s_q = 2},
           .plan = plan,
           .num_sms = 3});
  }
}

// Between kernels that touch whatever the call does not promise to be complete: the bits of a
// launch on its own.
TEST(Sm90Fp8Emulated, LaunchedEarly) {
  for (const bool early : {false, true}) {
    for (const Plan& plan : {Plan{.heads = 8, .split_keys = 64, .num_splits = 3},
                             Plan{.heads = 16, .split_keys = 192}}) {
      Arena arena;
      Rng rng(static_cast<uint64_t>(plan.heads));
      Outputs whole;
      SparseMlaArgs args = test::make_args(arena, rng,
                                           {.t = 3,
                                            .h = 9,
                                            .window = 70,
                                            .compressed = 90,
                                            .dtype = DType::kBF16,
                                            .lengths = true,
                                            .rope_pairs = 32},
                                           whole);
      args.max_logits = {};
      args.window.early = args.compressed.early = args.inverse_rope.early = early;
      std::vector<ConstTensorView> before{args.q, args.window.pool.pages,
                                          args.compressed.pool.pages, args.sink, args.out};
      if (!early) {
        for (const ConstTensorView& view :
             {args.window.indices, args.window.topk_length, args.compressed.indices,
              args.compressed.topk_length, args.inverse_rope.positions, args.inverse_rope.freqs})
          before.push_back(view);
      }
      arena.freeze();
      arena.prepare();
      run_emulated(args, plan, 2, 0);
      const std::vector<std::byte> want = arena.written();
      for (uint64_t seed = 0; seed < kSeeds; ++seed) {
        arena.prepare();
        ASSERT_NO_THROW(emulator::launch_stream(
            {emulator::touching(before), kernel_of(args, plan, 2), emulator::touching(before)},
            seed));
        arena.verify();
        EXPECT_TRUE(want == arena.written()) << fmt::format("early {}, seed {}", early, seed);
      }
    }
  }
}

TEST(Sm90Fp8Emulated, KvPipelineWraps) {
  check({.shape = {.t = 2, .h = 16, .window = 128, .compressed = 900},
         .plan = {.heads = 16, .split_keys = 1088},
         .num_sms = 1});
}

TEST(Sm90Fp8Emulated, SplitKv) {
  for (const int splits : {2, 3, 4, 5, 6, 7, 8}) {
    check({.shape = {.t = 2, .h = 9, .window = 40, .compressed = splits * 64 - 50},
           .plan = {.heads = splits % 2 == 0 ? 16 : 8, .split_keys = 64, .num_splits = splits},
           .max_logits = splits == 3});
  }
  check({.shape = {.t = 2, .h = 70, .window = 100, .compressed = 300, .lengths = true},
         .plan = {.heads = 64, .split_keys = 256, .num_splits = 2}});
}

// Work tiles of no key, one key, one split and all splits, one after another in a CTA without
// splits; all indices of a split may be invalid.
TEST(Sm90Fp8Emulated, WorkTilesOfAllLengths) {
  for (const int splits : {1, 4}) {
    for (const double invalid : {0.2, 0.95}) {
      check(
          {.shape = {.t = 5,
                     .h = 9,
                     .window = 130,
                     .compressed = 110,
                     .invalid = invalid,
                     .s_q = 2,
                     .lengths = true},
           .plan = {
               .heads = 16, .split_keys = 256 / splits, .num_splits = splits, .invariant = true}});
    }
  }
}

// The first key tile of a pair sets the row max alone; if it has no valid key, the second one does.
TEST(Sm90Fp8Emulated, ManyHeadsWithFewKeys) {
  check({.shape = {.t = 6, .h = 9, .window = 130, .compressed = 110, .invalid = 0.99, .s_q = 2},
         .plan = {.heads = 64, .split_keys = 256},
         .num_sms = 2});
}

// Logits so far apart that later key tiles exceed the row max of the first pair, and that some P
// are below the range of f16.
TEST(Sm90Fp8Emulated, RowMaxUpdates) {
  for (const int heads : {8, 64}) {
    check({.shape = {.t = 2, .h = heads, .window = 100, .compressed = 480},
           .plan = {.heads = heads, .split_keys = 640},
           .num_sms = 1,
           .sharpness = 8.f});
  }
  check({.shape = {.t = 2, .h = 16, .compressed = 700, .invalid = 0.7},
         .plan = {.heads = 16, .split_keys = 384, .num_splits = 2},
         .sharpness = 8.f});
}

TEST(Sm90Fp8Emulated, TopkLengthsAndInvalidIndices) {
  for (const int splits : {1, 2}) {
    check({.shape = {.t = 6,
                     .h = 9,
                     .window = 70,
                     .compressed = 50,
                     .s_q = 2,
                     .lengths = true,
                     .strided = true},
           .plan = {.heads = 16, .split_keys = 128 / splits, .num_splits = splits},
           .num_sms = 2,
           .max_logits = true});
    check({.shape = {.t = 3, .h = 9, .window = 8, .compressed = 3, .invalid = 1.0},
           .plan = {.heads = 16, .split_keys = 64, .num_splits = splits}});
  }
}

TEST(Sm90Fp8Emulated, UnnormalizedOutput) {
  for (const int splits : {1, 3}) {
    for (const bool f32_out : {false, true}) {
      check({.shape = {.t = 3,
                       .h = 16,
                       .window = 60,
                       .compressed = 120,
                       .lengths = true,
                       .normalized = !f32_out,
                       .f32_out = f32_out},
             .plan = {.heads = 16, .split_keys = 192 / splits, .num_splits = splits},
             .num_sms = 2,
             .max_logits = true});
    }
  }
  check({.shape = {.t = 2, .h = 8, .window = 60, .compressed = 120, .normalized = false},
         .plan = {.heads = 8, .split_keys = 192},
         .num_sms = 1,
         .max_logits = true});
}

// Queries with keys in one split only, whose CTA stores the output, and others, which are combined.
TEST(Sm90Fp8Emulated, SingleSplitOwner) {
  Arena arena;
  Rng rng(6);
  Outputs whole;
  constexpr int64_t kListed = 200;
  SparseMlaArgs args = test::make_args(
      arena, rng,
      {.t = 5, .h = 9, .window = 128, .compressed = kListed, .dtype = DType::kBF16, .d_v = 512},
      whole);
  args.max_logits = {};
  for (const int64_t query : {0, 3}) {
    auto* ids = const_cast<int32_t*>(args.compressed.indices.row<int32_t>(query));
    std::fill(ids, ids + kListed, -1);
  }
  emulator::check_runs(arena, args, whole, kSeeds, [&](int seed) {
    run_emulated(args, {.heads = 16, .split_keys = 128, .num_splits = 3, .invariant = true}, 1,
                 static_cast<uint64_t>(seed));
  });
}

// The scales of all groups of a V4 entry.
void put_scales(uint8_t scale, const KvPool& pool, uint8_t* page, int64_t entry) {
  std::memset(page + pool.layout.scale_offset(pool.page_entries, entry), scale,
              static_cast<size_t>(pool.layout.nope / pool.layout.group()));
}
void put_scales(uint8_t scale, const KvPool& pool) {
  for (int64_t page = 0; page < pool.pages.dim(0); ++page) {
    for (int64_t entry = 0; entry < pool.page_entries; ++entry)
      put_scales(scale, pool, pool.pages.row<uint8_t>(page), entry);
  }
}

// -1s after the valid indices change no bit, however many splits they fill: after one split with
// keys and after two, in the fp32 fallback, and where many values of the partials are +0 or -0 in
// f16 (scale: of all entries; 0: unchanged).
void check_trailing(int heads, int64_t compressed, const std::optional<test::Large>& large,
                    uint8_t scale = 0) {
  constexpr int64_t kLong = 600;
  Arena arena;
  Rng rng(5);
  Outputs whole;
  constexpr int64_t kWindow = 30, kLongWindow = 100;
  const Shape shape{
      .t = 2, .h = 9, .window = kLongWindow, .compressed = kLong, .dtype = DType::kBF16};
  SparseMlaArgs args = test::make_args(arena, rng, shape, whole);
  if (large) test::put_large(*large, args);
  if (scale != 0) put_scales(scale, args.window.pool), put_scales(scale, args.compressed.pool);
  for (int64_t i = 0; i < shape.t; ++i) {
    auto* ids = const_cast<int32_t*>(args.compressed.indices.row<int32_t>(i));
    std::fill(ids + compressed, ids + kLong, -1);
    ids = const_cast<int32_t*>(args.window.indices.row<int32_t>(i));
    std::fill(ids + kWindow, ids + kLongWindow, -1);
  }
  arena.freeze();
  std::vector<std::byte> unpadded;
  for (const int64_t slots : {compressed, compressed + 1, kLong}) {
    for (const int64_t window : {kWindow, int64_t{70}, kLongWindow}) {
      SparseMlaArgs call = args;
      call.window.indices = args.window.indices.slice(2, 0, window);
      call.compressed.indices = args.compressed.indices.slice(2, 0, slots);
      auto splits = static_cast<int>(ceil_div(sm90_fp8::kInvariantWindow + slots, int64_t{128}));
      while (!sm90_fp8::splits_fit(heads, splits)) ++splits;
      arena.prepare();
      run_emulated(
          call, {.heads = heads, .split_keys = 128, .num_splits = splits, .invariant = true}, 1, 1);
      if (unpadded.empty()) unpadded = arena.written();
      EXPECT_TRUE(unpadded == arena.written())
          << compressed << " slots of " << slots << ", window " << kWindow << " of " << window;
    }
  }
}

TEST(Sm90Fp8Emulated, IgnoresTrailingInvalidIndices) {
  for (const int64_t compressed : {20, 98, 150}) check_trailing(16, compressed, {});
  for (const test::Large large : test::kLarge) check_trailing(16, 20, large);
  check_trailing(64, 98, {});
  for (const int heads : {16, 64}) check_trailing(heads, 98, {}, 127 - 24);
}

TEST(Sm90Fp8Emulated, Fp32Fallback) {
  for (const test::Large large : test::kLarge) {
    for (const int splits : {1, 2}) {
      check({.shape = {.t = 3, .h = 10, .window = 40, .compressed = 80},
             .plan = {.heads = 16, .split_keys = 128 / splits, .num_splits = splits},
             .large = large});
    }
  }
}

// An entry 2^60 times larger than all others is alone in its split. Heads with a large logit for it
// have nothing else in their output; for the others its P is 0, and their other partials, which are
// not divided because of it, are exact as before.
TEST(Sm90Fp8Emulated, HugeEntryAloneInItsSplit) {
  for (const int heads : {16, 64}) {
    Arena arena;
    Rng rng(8);
    Outputs whole;
    constexpr int64_t kSplitKeys = 64, kQuery = 1;
    const Shape shape{
        .t = 3, .h = 10, .compressed = 4 * kSplitKeys, .dtype = DType::kBF16, .invalid = 0};
    SparseMlaArgs args = test::make_args(arena, rng, shape, whole);
    args.lse = args.max_logits = {};  // f32 is not precise enough for theirs
    const KvPool& pool = args.compressed.pool;
    const auto [page, entry] = test::first_row(args, kQuery);
    put_scales(127 + 60, pool, page, entry);
    auto* ids = const_cast<int32_t*>(args.compressed.indices.row<int32_t>(kQuery));
    std::fill(ids + 1, ids + kSplitKeys, -1);
    const SparseMlaWant want = sparse_mla_oracle({.numerics = Numerics::kOfficial}, args);
    arena.freeze();
    arena.prepare();
    run_emulated(args, {.heads = heads, .split_keys = kSplitKeys, .num_splits = 4}, 1, 1);
    for (int64_t h = 0; h < shape.h;
         ++h) {  // one head at a time: some are 2^60 times as large as others
      const int64_t first = (kQuery * shape.h + h) * 512;
      const auto* got = reinterpret_cast<const uint16_t*>(args.out.data) +
                        kQuery * args.out.stride[0] + h * args.out.stride[args.out.rank - 2];
      double largest = 0, off = 0;
      for (int64_t d = 0; d < 512; ++d) {
        const double value = want.out[static_cast<size_t>(first + d)];
        largest = std::max(largest, std::abs(value));
        off = std::max(off, std::abs(value - static_cast<double>(bf16_to_f32(got[d]))));
      }
      EXPECT_LE(off, 0.01 * largest) << heads << " heads, head " << h;
    }
  }
}

// A CTA with one work tile, whose list wraps around the KV pipeline.
TEST(Sm90Fp8Emulated, LongListInOneCta) {
  check({.shape = {.t = 1, .h = 8, .window = 128, .compressed = 900},
         .plan = {.heads = 8, .split_keys = 1088}});
  check({.shape = {.t = 1, .h = 33, .window = 128, .compressed = 700},
         .plan = {.heads = 64, .split_keys = 832}});
}

// The padding byte after the scales of V4 entries changes nothing, nor does it select the fallback.
TEST(Sm90Fp8Emulated, IgnoresScalePadding) {
  Arena arena;
  Rng rng(7);
  Outputs whole;
  const Shape shape{
      .t = 1, .h = 8, .compressed = 100, .dtype = DType::kBF16, .invalid = 0, .f32_out = true};
  const SparseMlaArgs args = test::make_args(arena, rng, shape, whole);
  const KvPool& pool = args.compressed.pool;
  std::vector<std::byte> with_zeros;
  for (const int padding : {0, 0xff}) {
    for (int64_t row = 0; row < pool.num_rows(); ++row) {
      uint8_t* page = pool.pages.row<uint8_t>(row / pool.page_entries);
      page[pool.layout.scale_offset(pool.page_entries, row % pool.page_entries) +
           pool.layout.num_scales()] = static_cast<uint8_t>(padding);
    }
    arena.freeze();
    arena.prepare();
    run_emulated(args, {.heads = 8, .split_keys = 128}, 1, 0);
    if (padding == 0) with_zeros = arena.written();
  }
  EXPECT_TRUE(with_zeros == arena.written());
}

// The inverse RoPE of stored outputs, as the kernel of rope computes it.
template <class T>
void rotate_back(const SparseMlaArgs& args) {
  const int64_t heads = args.out.dim(2), d = args.out.dim(3),
                pairs = args.inverse_rope.freqs.dim(0);
  for (int64_t i = 0; i < args.out.numel() / d * pairs; ++i) {
    const int64_t row = i / pairs, pair = i % pairs;
    auto* at = reinterpret_cast<T*>(args.out.data) + row * d + d - 2 * (pairs - pair);
    const auto position =
        static_cast<float>(args.inverse_rope.positions.as<int32_t>()[row / heads]);
    const float freq = args.inverse_rope.freqs.as<float>()[pair];
    const float2 rotated =
        rotate({to_float(at[0]), to_float(at[1])}, rotation_of(position, freq, true));
    at[0] = from_float<T>(rotated.x), at[1] = from_float<T>(rotated.y);
  }
}

// The bits of two ops: attention, then the rotation of what it has stored.
void check_inverse_rope(Case test) {
  test.shape.dtype = DType::kBF16;
  test.shape.rope_pairs = 32;
  Arena arena;
  Rng rng(static_cast<uint64_t>(test.shape.h * 100 + test.plan.num_splits));
  Outputs whole;
  SparseMlaArgs args = test::make_args(arena, rng, test.shape, whole);
  if (test.large) test::put_large(*test.large, args);
  SparseMlaArgs attention = args;
  attention.inverse_rope = {};
  arena.freeze();
  arena.prepare();
  run_emulated(attention, test.plan, test.num_sms, 0);
  args.out.dtype == DType::kF32 ? rotate_back<float>(args) : rotate_back<bf16>(args);
  const std::vector<std::byte> want = arena.written();
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    arena.prepare();
    ASSERT_NO_THROW(run_emulated(args, test.plan, test.num_sms, seed));
    arena.verify();
    EXPECT_TRUE(want == arena.written())
        << fmt::format("{} heads, {} splits, seed {}", test.shape.h, test.plan.num_splits, seed);
  }
}

TEST(Sm90Fp8Emulated, InverseRope) {
  for (const int heads : {8, 16, 32, 64}) {  // work tiles one after another in a CTA
    check_inverse_rope({.shape = {.t = 2, .h = heads + 3, .window = 33, .compressed = 20, .s_q = 2},
                        .plan = {.heads = heads, .split_keys = 192},
                        .num_sms = 3});
  }
  for (const int splits : {2, 4, 8}) {
    check_inverse_rope(
        {.shape = {.t = 2, .h = 9, .window = 40, .compressed = splits * 64 - 50},
         .plan = {.heads = splits == 4 ? 8 : 16, .split_keys = 64, .num_splits = splits}});
  }
  check_inverse_rope({.shape = {.t = 2, .h = 70, .window = 100, .compressed = 150, .f32_out = true},
                      .plan = {.heads = 64, .split_keys = 128, .num_splits = 2}});
  // One split has all keys.
  check_inverse_rope({.shape = {.t = 3, .h = 9, .window = 20, .compressed = 20, .lengths = true},
                      .plan = {.heads = 8, .split_keys = 64, .num_splits = 4, .invariant = true}});
  for (const int splits : {1, 2}) {
    check_inverse_rope({.shape = {.t = 3, .h = 10, .window = 40, .compressed = 80},
                        .plan = {.heads = 16, .split_keys = 128 / splits, .num_splits = splits},
                        .large = test::kLarge[0]});
  }
}

}  // namespace
}  // namespace dsv4
