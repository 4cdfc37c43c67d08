#include "dsv4/tensor/scratch.h"

#include <gtest/gtest.h>

#include <cstring>

#include "dsv4/base/error.h"
#include "tests/harness/errors.h"

namespace dsv4 {
namespace {

TEST(Scratch, ScopesReturnMemoryAndViewsDoNotOverlap) {
  Scratch scratch;
  const TensorView a = scratch.take(DType::kF32, {100});
  std::memset(a.data, 1, 400);
  const std::byte* inner = nullptr;
  for (int i = 0; i < 3; ++i) {
    const Scratch::Scope scope(scratch);
    const TensorView b = scratch.take(DType::kU8, {1000});
    EXPECT_TRUE(inner == nullptr || inner == b.data) << "the same bytes are reused";
    inner = b.data;
    std::memset(b.data, 2, 1000);
  }
  for (int i = 0; i < 400; ++i) ASSERT_EQ(a.data[i], std::byte{1});
  EXPECT_EQ(reinterpret_cast<uintptr_t>(inner) % 256, 0u);
}

TEST(Scratch, LargeAndEmptyTensors) {
  Scratch scratch;
  EXPECT_FALSE(scratch.take(DType::kF32, {0, 5}).empty());
  const TensorView large = scratch.take(DType::kU8, {int64_t{20} << 20});
  large.data[large.numel() - 1] = std::byte{7};
  const TensorView after = scratch.take(DType::kU8, {10});
  EXPECT_TRUE(after.data + 10 <= large.data || after.data >= large.data + large.numel());
}

// As in a long prefill, every step needs a little more than the step before, while one tensor
// stays.
TEST(Scratch, GrowingNeedsDoNotAccumulateChunks) {
  Scratch scratch;
  const TensorView kept = scratch.take(DType::kU8, {int64_t{7} << 20});
  std::memset(kept.data, 3, 1000);
  int64_t largest = 0;
  for (int64_t step = 1; step <= 200; ++step) {
    const Scratch::Scope scope(scratch);
    largest = step * 300000;
    scratch.take(DType::kU8, {largest});
    scratch.take(DType::kU8, {largest / 2});
  }
  EXPECT_LT(scratch.reserved_bytes(), 5 * largest);
  EXPECT_EQ(kept.data[999], std::byte{3});
}

// Equal takes on a counting and on an allocating Scratch: a reservation of the peak is enough
// without a second chunk, and a smaller one is not.
TEST(Scratch, CountingReportsTheNeedOfARealOne) {
  const auto walk = [](Scratch& scratch) {
    scratch.take(DType::kF32, {1000});
    for (const int64_t n : {int64_t{1} << 20, int64_t{9} << 20, int64_t{3}}) {
      const Scratch::Scope scope(scratch);
      scratch.take(DType::kU8, {n});
      scratch.take(DType::kU8, {1});
    }
    scratch.take(DType::kBF16, {7, 11});
  };
  Scratch counted = Scratch::counting();
  walk(counted);
  EXPECT_EQ(counted.peak_bytes(), 4096 + (int64_t{9} << 20) + 256);
  EXPECT_EQ(counted.reserved_bytes(), 0);
  for (const int64_t less : {0, 256}) {
    Scratch real;
    real.reserve(counted.peak_bytes() - less);
    for (int step = 0; step < 2; ++step) {
      const Scratch::Scope scope(real);
      walk(real);
    }
    EXPECT_EQ(real.peak_bytes(), counted.peak_bytes());
    EXPECT_EQ(real.reserved_bytes() == counted.peak_bytes(), less == 0);
  }
}

// A caller's workspace: the counted bytes are enough, a smaller workspace is refused with both
// sizes, and a refused take does not affect the next scope.
TEST(Scratch, TakesNoMoreThanTheBorrowedMemory) {
  Buffer block(DType::kU8, {1024});
  Scratch scratch = Scratch::borrowing(block);
  EXPECT_EQ(scratch.reserved_bytes(), 1024);
  for (int step = 0; step < 2; ++step) {
    const Scratch::Scope scope(scratch);
    EXPECT_EQ(scratch.take(DType::kF32, {10}).data, block.view().data);
    EXPECT_EQ(scratch.take(DType::kU8, {768}).data, block.view().data + 256);
    EXPECT_EQ(test::error_of(ErrorCode::kResource, [&] { scratch.take(DType::kU8, {1}); }),
              "a workspace of 1024 bytes is too small: 1280 are wanted");
  }
  Scratch none = Scratch::borrowing({});
  EXPECT_EQ(test::error_of(ErrorCode::kResource, [&] { none.take(DType::kU8, {1}); }),
            "a workspace of 0 bytes is too small: 256 are wanted");
  const TensorView crooked = block.view().slice(0, 8, 1024);
  EXPECT_TRUE(
      test::says(test::error_of(ErrorCode::kInvalidArgument, [&] { Scratch::borrowing(crooked); }),
                 "multiple of 256 bytes"));
}

}  // namespace
}  // namespace dsv4
