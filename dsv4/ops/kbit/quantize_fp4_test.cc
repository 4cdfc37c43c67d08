#include "dsv4/ops/kbit/quantize_fp4.h"

#include <cmath>
#include <vector>

#include "dsv4/base/rng.h"
#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/ue8m0.h"
#include "dsv4/ops/kbit/quantize_fp4_group.h"
#include "dsv4/tensor/buffer.h"
#include "tests/harness/errors.h"
#include "tests/harness/op_check.h"

namespace dsv4 {
namespace {

struct Case {
  Buffer x, importance, pairs, scales;
  QuantizeFp4Args args;

  Case(WeightFormat format, int64_t n, int64_t k, uint64_t seed, double sigma)
      : x(DType::kF32, {n, k}), importance(DType::kF32, {k}), pairs(DType::kU8, {n, k / 2}) {
    const bool mx = format == WeightFormat::kMxfp4;
    scales = mx ? Buffer(DType::kE8M0, {n, k / 32}) : Buffer(DType::kE4M3, {n, k / 16});
    Rng rng(seed);
    float largest = 0;
    for (int64_t i = 0; i < n * k; ++i) {
      x.as<float>()[i] = static_cast<float>(sigma * rng.normal());
      largest = std::max(largest, std::abs(x.as<float>()[i]));
    }
    for (int64_t i = 0; i < k; ++i)
      importance.as<float>()[i] = static_cast<float>(rng.uniform(0, 1));
    args = {.format = format, .x = x, .pairs = pairs, .scales = scales};
    if (!mx) args.scale2 = nvfp4_tensor_scale(largest);
  }
  WeightView weight() const {
    return {.format = args.format,
            .n = args.x.dim(0),
            .k = args.x.dim(1),
            .data = args.pairs,
            .scale = args.scales,
            .scale2 = args.scale2};
  }
  double error(const float* weights = nullptr) const {
    double sum = 0;
    for (int64_t i = 0; i < args.x.dim(0); ++i) {
      for (int64_t j = 0; j < args.x.dim(1); ++j) {
        const double off =
            weight_value(weight(), i, j) - static_cast<double>(args.x.row<float>(i)[j]);
        sum += off * off * (weights == nullptr ? 1 : static_cast<double>(weights[j]));
      }
    }
    return sum;
  }
};

TEST(QuantizeFp4, CodesHaveTheirValues) {
  for (uint8_t code = 0; code < 16; ++code) {
    const float value = quantize_fp4_kernel::e2m1_value(code);
    EXPECT_EQ(value, e2m1_to_f32(code)) << int{code};
    EXPECT_EQ(std::signbit(value), std::signbit(e2m1_to_f32(code))) << int{code};
  }
}

// The error of a group with the best of all 256 scale bytes, by trying them in double precision.
double best_error(const Case& c, int64_t row, int64_t first, int group) {
  double least = HUGE_VAL;
  for (int byte = 0; byte < 255; ++byte) {
    const auto code = static_cast<uint8_t>(byte);
    const bool mx = group == 32;
    if (!mx && byte > 126) break;
    const double scale = mx ? static_cast<double>(ue8m0_to_f32(code))
                            : static_cast<double>(e4m3_to_f32(code) * c.args.scale2);
    double sum = 0;
    for (int i = 0; i < group; ++i) {
      const auto x = static_cast<double>(c.args.x.row<float>(row)[first + i]);
      double nearest = HUGE_VAL;
      for (const double value : {0., .5, 1., 1.5, 2., 3., 4., 6.})
        nearest = std::min(nearest, std::abs(value * scale - std::abs(x)));
      sum += nearest * nearest;
    }
    least = std::min(least, sum);
  }
  return least;
}

TEST(QuantizeFp4, SearchedScalesAreTheBestOfAll) {
  for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kNvfp4}) {
    Case c(format, 40, 96, 3, 0.02);
    const int group = format == WeightFormat::kMxfp4 ? 32 : 16;
    quantize_fp4({}, c.args);
    double best = 0;
    for (int64_t i = 0; i < 40; ++i)
      for (int64_t j = 0; j < 96; j += group) best += best_error(c, i, j, group);
    EXPECT_LE(c.error(), best * 1.0005) << name(format);
    const double searched = c.error();
    c.args.searched = false;
    quantize_fp4({}, c.args);
    EXPECT_GT(c.error(), searched * 1.02) << name(format);
  }
}

TEST(QuantizeFp4, ImportanceLowersTheWeightedError) {
  for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kNvfp4}) {
    Case c(format, 30, 160, 5, 3);
    quantize_fp4({}, c.args);
    const double before = c.error(c.importance.as<float>());
    c.args.importance = c.importance;
    quantize_fp4({}, c.args);
    EXPECT_LT(c.error(c.importance.as<float>()), before) << name(format);
  }
}

// Values that the formats hold come back, over the whole range of scales; zeros are zeros.
TEST(QuantizeFp4, WhatFitsIsExact) {
  for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kNvfp4}) {
    for (const double size : {1e-30, 1e-3, 1.0, 1e25}) {
      Case c(format, 2, 64, 7, 1);
      const auto unit = static_cast<float>(std::exp2(std::round(std::log2(size))));
      const float values[] = {6, -4, 3, 0, -0.5f, 1.5f, 2, -1};
      for (int i = 0; i < 64; ++i) {
        c.x.as<float>()[i] = values[i % 8] * unit;
        c.x.as<float>()[64 + i] = 0;
      }
      if (format == WeightFormat::kNvfp4) c.args.scale2 = unit / 16;
      quantize_fp4({}, c.args);
      EXPECT_EQ(c.error(), 0) << name(format) << " " << size;
    }
  }
}

TEST(QuantizeFp4, ReportsErrors) {
  Case c(WeightFormat::kMxfp4, 3, 64, 1, 1);
  c.x.as<float>()[64 + 5] = NAN;
  const auto quantize = [&] { quantize_fp4({}, c.args); };
  EXPECT_EQ(test::error_of(ErrorCode::kBadInput, quantize), "row 1, column 5 is nan");
  c.args.format = WeightFormat::kF32;
  EXPECT_TRUE(test::says(test::error_of(ErrorCode::kInvalidArgument, quantize), "is not FP4"));
}

std::vector<double> bytes_of(const ConstTensorView& view) {
  std::vector<double> bytes;
  for (int64_t i = 0; i < view.bytes(); ++i) bytes.push_back(static_cast<double>(view.data[i]));
  return bytes;
}

// Every implementation has the bits of the CPU's, of which the tests above say that they are right.
TEST(QuantizeFp4, EveryImplementationHasTheseBits) {
  for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kNvfp4}) {
    for (const bool importance : {false, true}) {
      for (const bool searched : {false, true}) {
        for (const int64_t n : {0, 1, 9}) {
          Case c(format, n, 32 * (n + 2), static_cast<uint64_t>(n + 1), 0.03);
          c.args.searched = searched;
          if (importance) c.args.importance = c.importance;
          quantize_fp4({}, c.args);
          test::Arena arena;
          QuantizeFp4Args args = c.args;
          const TensorView x = arena.input(DType::kF32, {n, args.x.dim(1)});
          std::copy_n(c.x.as<float>(), x.numel(), x.as<float>());
          args.x = x;
          if (importance) {
            const TensorView h = arena.input(DType::kF32, {args.x.dim(1)});
            std::copy_n(c.importance.as<float>(), h.numel(), h.as<float>());
            args.importance = h;
          }
          args.pairs = arena.output(DType::kU8, {n, args.pairs.dim(1)});
          args.scales = arena.output(args.scales.dtype, {n, args.scales.dim(1)});
          test::OpCase<QuantizeFp4Args> test{
              .name = fmt::format("quantize_fp4 {} {} searched {} importance {}", name(format), n,
                                  searched, importance),
              .args = args,
              .num_tokens = n};
          const auto decoded = [scales = args.scales] {
            Buffer bytes(DType::kU8, {scales.dim(0), scales.dim(1)});
            std::copy_n(scales.data, scales.bytes(), bytes.view().data);
            return bytes;
          };
          test.outputs = {{"pairs", args.pairs, bytes_of(c.pairs), {.ulps = 0}},
                          {"scales", args.scales, bytes_of(c.scales), {.ulps = 0}, 0, decoded}};
          test.one_token = [](const QuantizeFp4Args& a, int64_t i) {
            QuantizeFp4Args one = a;
            one.x = a.x.slice(0, i, i + 1), one.pairs = a.pairs.slice(0, i, i + 1);
            one.scales = a.scales.slice(0, i, i + 1);
            return one;
          };
          test.strided = [](QuantizeFp4Args& a, test::StridedCopy& copy) {
            copy(a.x), copy(a.pairs), copy(a.scales);
          };
          check_op(quantize_fp4.impls, {}, arena, test);
        }
      }
    }
  }
}

}  // namespace
}  // namespace dsv4
