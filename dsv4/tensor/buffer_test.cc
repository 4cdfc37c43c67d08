#include "dsv4/tensor/buffer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <utility>

namespace dsv4 {
namespace {

TEST(Buffer, IsAlignedAndZero) {
  for (const int64_t n : {0, 1, 15, 16, 17, 1000, 100'000}) {
    const Buffer buffer(DType::kBF16, {n});
    ASSERT_FALSE(buffer.empty());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.view().data) % 64, 0u) << n;
    EXPECT_TRUE(std::all_of(buffer.as<uint16_t>(), buffer.as<uint16_t>() + n,
                            [](uint16_t v) { return v == 0; }));
    std::fill_n(buffer.as<uint16_t>(), n, uint16_t{0xffff});  // asan detects a write past the end
  }
}

TEST(Buffer, ConvertsToViewsOfItself) {
  const Buffer buffer(DType::kF32, {3, 4});
  const TensorView view = buffer;
  const ConstTensorView const_view = buffer;
  EXPECT_EQ(view.data, const_view.data);
  EXPECT_EQ(to_string(view), "[3, 4] F32");
}

TEST(Buffer, MovingKeepsTheMemory) {
  Buffer first(DType::kI32, {4});
  first.as<int32_t>()[2] = 7;
  const Buffer second = std::move(first);
  EXPECT_EQ(second.as<int32_t>()[2], 7);
  EXPECT_TRUE(Buffer().empty());
}

TEST(Buffer, PagesAreNotCommittedUntilTouched) {
#ifdef DSV4_SANITIZED
  GTEST_SKIP() << "the sanitizer's shadow memory is counted too";
#endif
  const auto peak_kib = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  const long before = peak_kib();
  const Buffer buffer(DType::kF32, {int64_t{1} << 28});  // 1 GiB
  buffer.as<float>()[(int64_t{1} << 28) - 1] = 1.f;
  EXPECT_EQ(buffer.as<float>()[12345], 0.f);
  EXPECT_LT(peak_kib() - before, 100 * 1024);
}

}  // namespace
}  // namespace dsv4
