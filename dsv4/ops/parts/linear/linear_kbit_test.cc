// Shapes for cuda_kbit: k-bit weights with every kind of codebook, up to 64 rows of bf16 or f16.
// All other implementations of the table are tested with them too.

#include <algorithm>
#include <vector>

#include "dsv4/base/error.h"
#include "dsv4/ops/parts/linear/linear.h"
#include "dsv4/ops/parts/linear/linear_check_test.h"

namespace dsv4 {
namespace {

using test::Arena;

const test::TestedElsewhere kElsewhere{"sm90_many",    "sm90_few",     "sm90_few_kbit",
                                       "cublaslt",     "cublaslt_fp8", "cublaslt_dequantized",
                                       "cublaslt_any", "parts"};

// kRandom: nf, bnf or an asymmetric one.
enum class Book { kRandom, kE4M3, kLarge, kSmall };

struct Scene {
  int bits;
  int64_t t, n, k;
  DType dtype = DType::kBF16, out = DType::kBF16;
  Book book = Book::kRandom;
  int64_t first = 0;  // columns of x before those of the call
};

LinearArgs random_args(Arena& arena, Rng& rng, const Scene& s) {
  const WeightView weight = test::random_weight(
      arena, rng, {WeightFormat::kKbit, s.bits, s.book == Book::kE4M3}, s.n, s.k);
  auto* const book = const_cast<float*>(weight.codebook.as<float>());
  for (int i = 0; i < 1 << s.bits; ++i)
    book[i] *= s.book == Book::kLarge ? 600.f : s.book == Book::kSmall ? 0x1p-9f : 1.f;
  return test::random_linear(arena, rng, {.t = s.t, .x = s.dtype, .out = s.out, .first = s.first},
                             weight);
}

void check(const Scene& s) {
  Arena arena;
  Rng rng(static_cast<uint64_t>(s.bits * 10007 + s.t * 1009 + s.n * 13 + s.k));
  // By name it takes also what others compute faster.
  test::check_linear(arena, random_args(arena, rng, s),
                     fmt::format("k{} x {}", s.bits, name(s.dtype)), {.force_impl = "cuda_kbit"});
}

// Every number of rows that has a kernel, and those beside it; rows and columns that fill nothing.
TEST(LinearKbit, AgreesWithOracle) {
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (const int64_t t : {1, 2, 3, 5, 8, 9, 16, 17, 31, 32, 33, 64})
        check({.bits = bits, .t = t, .n = 133, .k = 672, .dtype = dtype, .out = dtype});
      for (const int64_t k : {32, 64, 96, 128, 160, 416, 2048, 8192})
        check({.bits = bits, .t = 3, .n = 71, .k = k, .dtype = dtype, .out = DType::kF32});
    }
    for (const int64_t n : {1, 8, 63, 64, 65, 1000, 9001})
      check({.bits = bits, .t = 2, .n = n, .k = 256});
  }
}

// Rows of the weight whose bytes are no multiple of 16 have copies of their own, by words.
TEST(LinearKbit, AnyAlignmentOfRows) {
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    for (const int64_t t : {1, 7, 20}) check({.bits = bits, .t = t, .n = 300, .k = 1056});
  }
}

// Long rows are shared by the warps of a CTA.
TEST(LinearKbit, LongRows) {
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    check({.bits = bits, .t = 1, .n = 40, .k = 28672, .out = DType::kF32});
    check({.bits = bits, .t = 16, .n = 260, .k = 14336});
    check({.bits = bits, .t = 64, .n = 100, .k = 8192});
  }
}

TEST(LinearKbit, AnyCodebook) {
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    for (const Book book : {Book::kE4M3, Book::kLarge, Book::kSmall}) {
      check({.bits = bits, .t = 4, .n = 90, .k = 512, .book = book});
      // Other implementations look up weights as f16, in which small ones lose bits.
      if (book != Book::kSmall)
        check({.bits = bits,
               .t = 4,
               .n = 90,
               .k = 512,
               .dtype = DType::kF16,
               .out = DType::kF16,
               .book = book});
    }
  }
}

// Columns of wider rows.
TEST(LinearKbit, RowsMayBeStrided) {
  for (const int64_t t : {1, 12}) check({.bits = 3, .t = t, .n = 70, .k = 384, .first = 64});
}

// Work that is shared otherwise, or a slot that is copied too early, shows in bits.
TEST(LinearKbit, RepeatedCallsGiveTheSameBits) {
  const Context context{.force_impl = "cuda_kbit", .device = test::gpu()};
  const auto impl = std::ranges::find(linear.impls, "cuda_kbit", &Impl<LinearArgs>::name);
  if (impl == linear.impls.end() || !reaches(impl->arch, context)) GTEST_SKIP() << "no GPU";
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    for (const int64_t t : {1, 16, 64}) {
      Arena arena;
      Rng rng(static_cast<uint64_t>(bits));
      const LinearArgs args =
          random_args(arena, rng, {.bits = bits, .t = t, .n = 2500, .k = 4096, .out = DType::kF32});
      ASSERT_EQ(impl->reject(context, args), nullptr);
      arena.freeze();
      std::vector<std::byte> first;
      for (int i = 0; i < 100; ++i) {
        arena.prepare();
        impl->run(context, args);
        test::wait(*context.device);
        arena.verify();
        if (i == 0) first = arena.written();
        ASSERT_TRUE(first == arena.written()) << "k" << bits << " t=" << t << " call " << i;
      }
    }
  }
}

}  // namespace
}  // namespace dsv4
