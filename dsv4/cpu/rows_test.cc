#include "dsv4/cpu/rows.h"

#include <vector>

#include "dsv4/formats/float16.h"
#include "dsv4/tensor/buffer.h"
#include "tests/harness/op_check.h"

namespace dsv4::cpu {
namespace {

TEST(Rows, LoadWidensExactly) {
  const Buffer f32(DType::kF32, {2, 20}), bf16(DType::kBF16, {2, 20}), f16(DType::kF16, {2, 20});
  for (int i = 0; i < 40; ++i) {
    f32.as<float>()[i] = static_cast<float>(i) + 0.1f;
    bf16.as<uint16_t>()[i] = f32_to_bf16(static_cast<float>(i));
    f16.as<uint16_t>()[i] = static_cast<uint16_t>(0x3c00 + i);  // 1 + i / 1024
  }
  std::vector<float> x(17);
  load(f32, 3, 17, x.data());
  for (size_t i = 0; i < 17; ++i) EXPECT_EQ(x[i], static_cast<float>(i + 3) + 0.1f);
  load(bf16, 3, 17, x.data());
  for (size_t i = 0; i < 17; ++i) EXPECT_EQ(x[i], static_cast<float>(i + 3));
  load(f16, 3, 17, x.data());
  for (size_t i = 0; i < 17; ++i) EXPECT_EQ(x[i], 1 + static_cast<float>(i + 3) / 1024);
}

TEST(Rows, StoreRoundsOnceAndWritesOnlyItsRange) {
  const Buffer f32(DType::kF32, {20}), bf16(DType::kBF16, {20}), f16(DType::kF16, {20});
  std::vector<float> x;
  for (int i = 0; i < 17; ++i) x.push_back(1 + static_cast<float>(i) / 999);
  store(f32, 2, 17, x.data());
  store(bf16, 2, 17, x.data());
  store(f16, 2, 17, x.data());
  for (int64_t i = 0; i < 20; ++i) {
    const bool inside = i >= 2 && i < 19;
    const float value = inside ? x[static_cast<size_t>(i - 2)] : 0;
    EXPECT_EQ(f32.as<float>()[i], value);
    EXPECT_EQ(bf16_to_f32(bf16.as<uint16_t>()[i]), round_to_bf16(value));
    EXPECT_EQ(f16.as<uint16_t>()[i], f32_to_f16(value));
  }
}

TEST(Rows, ZeroValues) {
  load(TensorView(TensorMeta::contiguous(DType::kF32, {0}), nullptr), 0, 0, nullptr);
  store(TensorView(TensorMeta::contiguous(DType::kBF16, {0}), nullptr), 0, 0, nullptr);
}

TEST(Rows, ReportsUnsupportedDtypes) {
  const Buffer ints(DType::kI32, {4});
  float x[4] = {};
  EXPECT_EQ(test::error_of([&] { load(ints, 0, 4, x); }), "load of I32 values");
  EXPECT_EQ(test::error_of([&] { store(ints, 0, 4, x); }), "store of I32 values");
}

}  // namespace
}  // namespace dsv4::cpu
