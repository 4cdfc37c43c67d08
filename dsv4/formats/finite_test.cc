#include "dsv4/formats/finite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/float16.h"
#include "dsv4/formats/ue8m0.h"
#include "dsv4/tensor/buffer.h"

namespace dsv4 {
namespace {

// Every code of a 16-bit or 8-bit dtype alone in a tensor.
template <class Code, class Decode>
void check_all_codes(DType dtype, const Decode& decode) {
  const Buffer one(dtype, {1});
  for (uint32_t code = 0; code <= std::numeric_limits<Code>::max(); ++code) {
    *one.as<Code>() = static_cast<Code>(code);
    EXPECT_EQ(first_non_finite(one).has_value(), !std::isfinite(decode(static_cast<Code>(code))))
        << name(dtype) << " " << code;
  }
}

TEST(Finite, KnowsEveryCode) {
  check_all_codes<uint16_t>(DType::kBF16, bf16_to_f32);
  check_all_codes<uint16_t>(DType::kF16, f16_to_f32);
  check_all_codes<uint8_t>(DType::kE4M3, e4m3_to_f32);
  check_all_codes<uint8_t>(DType::kE8M0, ue8m0_to_f32);
}

TEST(Finite, WideFloats) {
  const Buffer f32(DType::kF32, {4}), f64(DType::kF64, {4});
  for (const double value : {0.0, -0.0, 3.0, 1e-40, -3.4e38}) {
    f32.as<float>()[2] = static_cast<float>(value);
    f64.as<double>()[2] = value;
    EXPECT_EQ(first_non_finite(f32), std::nullopt) << value;
    EXPECT_EQ(first_non_finite(f64), std::nullopt) << value;
  }
  for (const double value : {std::nan(""), -std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    f32.as<float>()[2] = static_cast<float>(value);
    f64.as<double>()[2] = value;
    EXPECT_EQ(first_non_finite(f32), 2) << value;
    EXPECT_EQ(first_non_finite(f64), 2) << value;
  }
}

TEST(Finite, FindsTheFirstOfLongTensors) {
  const Buffer long_one(DType::kF32, {5, 2000});
  long_one.as<float>()[9999] = std::nanf("");
  EXPECT_EQ(first_non_finite(long_one), 9999);
  long_one.as<float>()[1024] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(first_non_finite(long_one), 1024);
  EXPECT_EQ(value_at(long_one, 1024), HUGE_VAL);
}

TEST(Finite, SeesOnlyTheViewOfAStridedTensor) {
  const Buffer wide(DType::kF32, {4, 10});
  wide.as<float>()[25] = std::nanf("");
  EXPECT_EQ(first_non_finite(wide.view().slice(1, 0, 5)), std::nullopt);
  const ConstTensorView right = wide.view().slice(1, 3, 10);  // [4, 7]
  EXPECT_EQ(first_non_finite(right), 2 * 7 + 2);
  EXPECT_TRUE(std::isnan(value_at(right, 2 * 7 + 2)));
}

TEST(Finite, EmptyTensorsAndIntegersAreNumbers) {
  EXPECT_EQ(first_non_finite(Buffer(DType::kF32, {0, 4})), std::nullopt);
  const Buffer ids(DType::kI32, {2});
  ids.as<int32_t>()[0] = -1;
  EXPECT_EQ(first_non_finite(ids), std::nullopt);
}

TEST(Finite, ScoresMayBeMinusInfinity) {
  const Buffer scores(DType::kF32, {3});
  scores.as<float>()[0] = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(first_bad_score(scores), std::nullopt);
  scores.as<float>()[1] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(first_bad_score(scores), 1);
  scores.as<float>()[1] = std::nanf("");
  EXPECT_EQ(first_bad_score(scores), 1);
}

}  // namespace
}  // namespace dsv4
