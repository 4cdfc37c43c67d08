// Shapes for sm90_few and sm90_few_kbit: FP8, BF16 and k-bit weights, few tokens; activations as
// codes, as bf16, and as bf16 to be quantized. All other implementations of the table are tested
// with them too.

#include <cmath>

#include "dsv4/base/error.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#endif
#include "dsv4/ops/parts/linear/linear.h"
#include "dsv4/ops/parts/linear/linear_check_test.h"

namespace dsv4 {
namespace {

using test::Arena;

const test::TestedElsewhere kElsewhere{"cublaslt", "cublaslt_fp8", "cublaslt_dequantized",
                                       "cublaslt_any", "sm90_kbit_wide"};

enum class X { kBf16, kCodes, kQuantized };

struct Scene {
  int64_t t, n, k;
  WeightFormat format = WeightFormat::kFp8Block;
  int bits = 5;  // of bit planes
  X x = X::kCodes;
  int64_t groups = 1;
  DType out = DType::kBF16, scale = DType::kE8M0;
  bool invariant = false;
};

LinearArgs random_args(Arena& arena, const Scene& s) {
  Rng rng(static_cast<uint64_t>(s.t * 1000003 + s.n * 1009 + s.k));
  const test::StoredAs stored = s.format == WeightFormat::kKbit
                                    ? test::StoredAs{s.format, s.bits, true}
                                    : test::StoredAs{s.format};
  return test::random_linear(arena, rng,
                             {.t = s.t,
                              .x = s.x == X::kCodes ? DType::kE4M3 : DType::kBF16,
                              .out = s.out,
                              .groups = s.groups,
                              .quantize_x = s.x == X::kQuantized},
                             test::random_weight(arena, rng, stored, s.groups * s.n, s.k, s.scale));
}

// change: of the arguments, before the oracle sees them.
void check(const Scene& s, const std::function<void(LinearArgs&)>& change = {}) {
  Arena arena;
  LinearArgs args = random_args(arena, s);
  if (change) change(args);
  test::check_linear(arena, args, fmt::format("{} x {}", name(s.format), static_cast<int>(s.x)),
                     {.need_batch_invariant = s.invariant});
}

// Rows that end inside a tile; columns for 1, 2, 4 and 8 ranks of unequal shares.
TEST(LinearFewTokens, AgreesWithOracle) {
  for (const int64_t t : {1, 2, 3, 8, 9, 16, 17, 31, 32, 33, 40, 48, 63, 64}) {
    for (const X x : {X::kCodes, X::kBf16}) check({.t = t, .n = 200, .k = 1408, .x = x});
    check({.t = t, .n = 90, .k = 1352, .format = WeightFormat::kBF16, .x = X::kBf16});
  }
  for (const int64_t k : {128, 256, 512, 640}) {
    for (const X x : {X::kCodes, X::kBf16}) {
      check({.t = 3, .n = 65, .k = k, .x = x, .out = DType::kF32});
      check({.t = 3, .n = 65, .k = k, .x = x, .scale = DType::kF32});
    }
    check(
        {.t = 5, .n = 1, .k = k, .format = WeightFormat::kBF16, .x = X::kBf16, .out = DType::kF32});
  }
}

TEST(LinearFewTokens, QuantizesX) {
  for (const int64_t t : {1, 2, 3, 4, 6}) {
    check({.t = t, .n = 130, .k = 1408, .x = X::kQuantized});
    check({.t = t, .n = 128, .k = 256, .x = X::kQuantized, .groups = 2});
  }
  check({.t = 2, .n = 40, .k = 384, .format = WeightFormat::kMxfp4, .x = X::kQuantized});
}

// Ranks of one to five slabs of 256 columns; 2 tokens or 8 of a CTA.
TEST(LinearFewTokens, BitPlanes) {
  constexpr WeightFormat kKbit = WeightFormat::kKbit;
  for (const int64_t t : {1, 2, 3, 7, 8, 9}) check({.t = t, .n = 200, .k = 1280, .format = kKbit});
  for (const int64_t k : {256, 512, 2048, 10240})
    check({.t = 3, .n = 65, .k = k, .format = kKbit, .out = DType::kF32});
  for (const int64_t t : {1, 4, 5})
    check({.t = t, .n = 130, .k = 1536, .format = kKbit, .x = X::kQuantized});
  for (const X x : {X::kCodes, X::kQuantized})
    check({.t = 2, .n = 70, .k = 256, .format = kKbit, .x = x, .groups = 3});
  for (const int64_t t : {1, 2, 6}) {
    check({.t = t, .n = 130, .k = 1536, .format = kKbit, .x = X::kBf16});
    check({.t = t, .n = 128, .k = 512, .format = kKbit, .x = X::kBf16, .groups = 3});
  }
  check({.t = 1, .n = 64 * 300, .k = 1024, .format = kKbit});
  for (const X x : {X::kCodes, X::kBf16})
    check({.t = 19, .n = 100, .k = 512, .format = kKbit, .x = x, .invariant = true});
  for (const X x : {X::kCodes, X::kQuantized, X::kBf16}) {
    for (const int64_t t : {2, 4})
      check({.t = t, .n = 130, .k = 1536, .format = kKbit, .bits = 4, .x = x});
  }
  check({.t = 3, .n = 40, .k = 384, .format = kKbit});  // for other implementations
}

TEST(LinearFewTokens, GroupsOfCodes) {
  for (const int64_t t : {1, 7, 22, 50}) check({.t = t, .n = 256, .k = 384, .groups = 3});
}

TEST(LinearFewTokens, GroupsOfBf16) {
  for (const int64_t t : {1, 7}) check({.t = t, .n = 256, .k = 384, .x = X::kBf16, .groups = 3});
}

TEST(LinearFewTokens, GroupsOfBf16Weights) {
  for (const int64_t t : {1, 7, 20, 41}) {
    check({.t = t, .n = 70, .k = 256, .format = WeightFormat::kBF16, .x = X::kBf16, .groups = 3});
  }
}

// More than two tiles of a cluster: stages and exchange buffers are used again. 8 ranks have at
// most 33 clusters on a GPU of 132 SMs.
TEST(LinearFewTokens, ManyTilesOfACluster) {
  check({.t = 1, .n = 64 * 300, .k = 384});
  check({.t = 2, .n = 64 * 110 + 8, .k = 2048, .format = WeightFormat::kBF16, .x = X::kBf16});
  check({.t = 9, .n = 64 * 70, .k = 4096, .format = WeightFormat::kBF16, .x = X::kBf16});
  check({.t = 64, .n = 64 * 110 + 8, .k = 2048, .format = WeightFormat::kBF16, .x = X::kBf16});
  check({.t = 47, .n = 64 * 150, .k = 4096});
}

// Where bits must not depend on the batch, sm90_few takes all batches, and sm90_many large ones.
TEST(LinearFewTokens, InvariantBatches) {
  for (const X x : {X::kCodes, X::kBf16})
    check({.t = 70, .n = 100, .k = 256, .x = x, .invariant = true});
  check({.t = 131,
         .n = 72,
         .k = 1160,
         .format = WeightFormat::kBF16,
         .x = X::kBf16,
         .out = DType::kF32,
         .invariant = true});
  check({.t = 90, .n = 128, .k = 384, .groups = 3, .scale = DType::kF32, .invariant = true});
}

#if DSV4_CUDA
TEST(LinearFewTokens, DryRunOfMany) {
  const std::unique_ptr<Device> hopper = Device::dry_run({.name = "H", .major = 9, .num_sms = 132});
  const auto chosen = [&](const Scene& s) {
    Arena arena;
    const Context context{.need_batch_invariant = s.invariant, .device = hopper.get()};
    return choose(linear, context, random_args(arena, s)).name;
  };
  Scene s{.t = 65, .n = 128, .k = 256, .invariant = true};
  EXPECT_EQ(chosen(s), "sm90_many");
  s.t = 64;
  EXPECT_EQ(chosen(s), "sm90_few");
  s.t = 65, s.invariant = false;
  EXPECT_NE(chosen(s), "sm90_many");
  s.x = X::kBf16, s.format = WeightFormat::kBF16, s.invariant = true;
  EXPECT_EQ(chosen(s), "sm90_many");
}
#endif

// One, four and eight ranks; several tiles of a cluster of either order; rows and tokens that end
// inside a tile.
TEST(LinearFewTokens, ManyTokensHaveTheBitsOfFew) {
  if (test::gpu_capability().major != 9) GTEST_SKIP() << "for Hopper";
  const auto expect_equal = [](const Scene& s) {
    Arena arena;
    const LinearArgs args = random_args(arena, s);
    arena.freeze();
    const auto bits_of = [&](std::string_view impl) {
      arena.prepare();
      linear({.need_batch_invariant = true, .force_impl = impl, .device = test::gpu()}, args);
      test::wait(*test::gpu());
      arena.verify();
      return arena.written();
    };
    EXPECT_TRUE(bits_of("sm90_many") == bits_of("sm90_few"))
        << fmt::format("t={} n={} k={} {}", s.t, s.n, s.k, name(s.format));
  };
  for (const int64_t k : {128, 1024, 1152, 4096, 4224, 8192}) {
    for (const DType out : {DType::kBF16, DType::kF32}) {
      expect_equal({.t = 65, .n = 130, .k = k, .out = out});
      expect_equal({.t = 300, .n = 4096, .k = k, .out = out});
      expect_equal(
          {.t = 300, .n = 700, .k = k, .format = WeightFormat::kBF16, .x = X::kBf16, .out = out});
    }
  }
  expect_equal({.t = 4096, .n = 1024, .k = 4096});
  expect_equal({.t = 500, .n = 32768, .k = 1024});
  expect_equal({.t = 200, .n = 256, .k = 1280, .groups = 4, .scale = DType::kF32});
}

// An activation that is NaN makes its outputs NaN, and no others.
TEST(LinearFewTokens, NanAffectsOnlyItsOutputs) {
  for (const X x : {X::kCodes, X::kBf16, X::kQuantized}) {
    for (const WeightFormat format : {WeightFormat::kFp8Block, WeightFormat::kKbit}) {
      check({.t = 4, .n = 70, .k = 256, .format = format, .x = x}, [&](LinearArgs& args) {
        const ConstTensorView two = args.x.slice(0, 2, 3);
        auto* bytes = const_cast<uint8_t*>(reinterpret_cast<const uint8_t*>(two.data));
        std::fill_n(bytes + 7 * item_bytes(two.dtype), item_bytes(two.dtype), uint8_t{0x7f});
        if (two.dtype == DType::kBF16) bytes[14] = 0xff;
      });
    }
  }
}

}  // namespace
}  // namespace dsv4
