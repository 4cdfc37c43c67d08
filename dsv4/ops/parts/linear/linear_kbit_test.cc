// Shapes for cuda_kbit and sm90_kbit_wide: k-bit weights with every kind of codebook, bf16 and f16.
// All other implementations of the table are tested with them too.

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string_view>
#include <vector>

#include "dsv4/base/error.h"
#if DSV4_CUDA
#include "dsv4/device/device.h"
#endif
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

// Every number of rows that has a kernel of cuda_kbit, and those beside it; rows and columns that
// fill nothing.
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

// sm90_kbit_wide: whole and ragged tiles of both operands, several tiles of x.
TEST(LinearKbit, ManyRows) {
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    for (const int64_t t : {17, 32, 33, 64, 65, 96, 150, 300})
      check({.bits = bits, .t = t, .n = 133, .k = 1024});
    for (const int64_t t : {40, 130})
      check({.bits = bits, .t = t, .n = 133, .k = 512, .dtype = DType::kF16, .out = DType::kF16});
    for (const int64_t n : {1, 64, 128, 257, 1000})
      check({.bits = bits, .t = 40, .n = n, .k = 512, .out = DType::kF32});
  }
}

// An H200 has tiles of 128 rows of such a weight, and of 96 and 128 rows of x.
TEST(LinearKbit, ManyRowsOfMiddleWeights) {
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits)
    check({.bits = bits, .t = bits < 4 ? 150 : 200, .n = 2900, .k = 512, .out = DType::kF32});
}

// An H200 has tiles of 256 rows of such a weight, and of 64, 96 and 128 rows of x.
TEST(LinearKbit, ManyRowsOfLargeWeights) {
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    for (const int64_t t : {bits % 2 == 0 ? 40 : 90, 128})
      check({.bits = bits, .t = t, .n = 17000, .k = 512, .out = DType::kF32});
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

// Work that is shared otherwise, or a stage that is filled too early, shows in bits.
void check_repeated(const char* name, std::initializer_list<int64_t> rows) {
  const Context context{.force_impl = name, .device = test::gpu()};
  const auto impl =
      std::ranges::find(linear.impls, std::string_view(name), &Impl<LinearArgs>::name);
  if (impl == linear.impls.end() || !reaches(impl->arch, context)) GTEST_SKIP() << "no GPU";
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    for (const int64_t t : rows) {
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
TEST(LinearKbit, RepeatedCallsGiveTheSameBits) {
  check_repeated("cuda_kbit", {1, 16, 64});
}
TEST(LinearKbit, RepeatedCallsOfManyRowsGiveTheSameBits) {
  check_repeated("sm90_kbit_wide", {17, 64, 128, 300});
}

#if DSV4_CUDA
TEST(LinearKbit, DryRun) {
  const std::unique_ptr<Device> hopper =
      Device::dry_run({.name = "H", .major = 9, .num_sms = 132, .max_smem_per_block = 227 << 10});
  const auto chosen = [&](const Scene& s, bool invariant = false) {
    Arena arena;
    Rng rng(1);
    const LinearArgs args = random_args(arena, rng, s);
    return choose(linear, {.need_batch_invariant = invariant, .device = hopper.get()}, args).name;
  };
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    for (const int64_t t : {1, 16})
      EXPECT_EQ(chosen({.bits = bits, .t = t, .n = 8, .k = 512}), "cuda_kbit") << t;
    for (const int64_t t : {17, 32, 64, 256, 512})
      EXPECT_EQ(chosen({.bits = bits, .t = t, .n = 8, .k = 512, .dtype = DType::kF16}),
                "sm90_kbit_wide")
          << t;
  }
  EXPECT_EQ(chosen({.bits = 2, .t = 9, .n = 32800, .k = 512}), "sm90_kbit_wide") << "large";
  EXPECT_EQ(chosen({.bits = 2, .t = 8, .n = 32800, .k = 512}), "cuda_kbit") << "large";
  EXPECT_EQ(chosen({.bits = 4, .t = 32, .n = 8, .k = 768}), "cuda_kbit") << "columns";
  EXPECT_NE(chosen({.bits = 4, .t = 64, .n = 8, .k = 768}), "sm90_kbit_wide") << "columns";
  EXPECT_NE(chosen({.bits = 4, .t = 64, .n = 8, .k = 512}, true), "sm90_kbit_wide") << "invariant";
  for (int bits = kMinKbit; bits <= kMaxKbit; ++bits) {
    const auto invariant = [&](int64_t t) {
      return chosen({.bits = bits, .t = t, .n = 8, .k = 512}, true);
    };
    for (const int64_t t : {16, 17, 33, 64, 600}) EXPECT_EQ(invariant(t), invariant(1)) << t;
  }
}
#endif

}  // namespace
}  // namespace dsv4
