// Shapes for sm90_few and sm90_few_kbit: FP8, BF16 and k-bit weights, few tokens; activations as
// codes, as bf16, and as bf16 to be quantized. All other implementations of the table are tested
// with them too.

#include <cmath>

#include "dsv4/base/error.h"
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

// change: of the arguments, before the oracle sees them.
void check(const Scene& s, const std::function<void(LinearArgs&)>& change = {}) {
  Arena arena;
  Rng rng(static_cast<uint64_t>(s.t * 1000003 + s.n * 1009 + s.k));
  const test::StoredAs stored = s.format == WeightFormat::kKbit
                                    ? test::StoredAs{s.format, s.bits, true}
                                    : test::StoredAs{s.format};
  LinearArgs args =
      test::random_linear(arena, rng,
                          {.t = s.t,
                           .x = s.x == X::kCodes ? DType::kE4M3 : DType::kBF16,
                           .out = s.out,
                           .groups = s.groups,
                           .quantize_x = s.x == X::kQuantized},
                          test::random_weight(arena, rng, stored, s.groups * s.n, s.k, s.scale));
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

// Where bits must not depend on the batch, sm90_few takes all batches.
TEST(LinearFewTokens, InvariantBatches) {
  for (const X x : {X::kCodes, X::kBf16})
    check({.t = 70, .n = 100, .k = 256, .x = x, .invariant = true});
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
