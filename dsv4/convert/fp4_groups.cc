#include "dsv4/convert/fp4_groups.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "dsv4/base/error.h"
#include "dsv4/cpu/parallel.h"
#include "dsv4/formats/e2m1.h"
#include "dsv4/formats/e4m3.h"
#include "dsv4/formats/quant_group.h"
#include "dsv4/formats/ue8m0.h"

namespace dsv4 {
namespace {

// Candidates around the plain choice, as differences of scale bytes: from one that cuts the largest
// magnitude off to one that makes it a 3 or 4. An e4m3 byte is a step of 6 to 12 %.
struct Reach {
  int down, up;
};
constexpr Reach kMxReach{1, 1}, kNvReach{6, 10};

// One group with its scale bytes and their meaning.
struct Group {
  const float* x;
  const float* importance;  // or null
  int count;
  bool mx;
  float scale2;

  float scale(int byte) const {
    const auto code = static_cast<uint8_t>(byte);
    return mx ? ue8m0_to_f32(code) : e4m3_to_f32(code) * scale2;
  }
  int plain_byte() const {
    const float largest = absmax(x, count);
    if (largest == 0) return mx ? 127 : 0;
    if (!mx) return f32_to_e4m3(largest / kE2M1Max / scale2);
    return std::clamp(std::ilogb(largest) - 2 + 127, 1, 253);
  }
  uint8_t code(int i, float inverse) const { return f32_to_e2m1(x[i] * inverse); }
  double error(int byte) const {
    const float s = scale(byte), inverse = s > 0 ? 1 / s : 0.f;
    double sum = 0;  // squares of small weights are no f32 numbers
    for (int i = 0; i < count; ++i) {
      const auto off = static_cast<double>(e2m1_to_f32(code(i, inverse)) * s - x[i]);
      sum += off * off * (importance == nullptr ? 1. : static_cast<double>(importance[i]));
    }
    return sum;
  }
  int searched_byte() const {
    const int plain = plain_byte();
    const Reach reach = mx ? kMxReach : kNvReach;
    if (absmax(x, count) == 0) return plain;
    const int first = std::max(plain - reach.down, mx ? 1 : 0);
    const int last = std::min(plain + reach.up, mx ? 253 : 126);
    int best = first;
    double least = error(first);
    for (int byte = first + 1; byte <= last; ++byte) {
      const double now = error(byte);
      if (now < least) least = now, best = byte;
    }
    return best;
  }
};

void write_group(const Group& group, int byte, uint8_t* pairs) {
  const float s = group.scale(byte), inverse = s > 0 ? 1 / s : 0.f;
  for (int i = 0; i < group.count; i += 2)
    pairs[i / 2] = e2m1_pair(group.code(i, inverse), group.code(i + 1, inverse));
}

// False when a value is not finite.
bool quantize_row(const QuantizeFp4Args& args, int64_t row, int group_size) {
  const float* x = args.x.row<float>(row);
  for (int64_t at = 0; at < args.x.dim(1); at += group_size) {
    for (int i = 0; i < group_size; ++i)
      if (!std::isfinite(x[at + i])) return false;
    const Group group{
        .x = x + at,
        .importance = args.importance.empty() ? nullptr : args.importance.as<float>() + at,
        .count = group_size,
        .mx = args.format == WeightFormat::kMxfp4,
        .scale2 = args.scale2};
    const int byte = args.searched ? group.searched_byte() : group.plain_byte();
    args.scales.row<uint8_t>(row)[at / group_size] = static_cast<uint8_t>(byte);
    write_group(group, byte, args.pairs.row<uint8_t>(row) + at / 2);
  }
  return true;
}

[[noreturn]] void report_not_finite(const ConstTensorView& x) {
  for (int64_t row = 0; row < x.dim(0); ++row) {
    for (int64_t column = 0; column < x.dim(1); ++column) {
      const float value = x.row<float>(row)[column];
      if (!std::isfinite(value))
        fail(ErrorCode::kBadInput, "row {}, column {} is {}", row, column, value);
    }
  }
  fail(ErrorCode::kBadInput, "a value is not finite");
}

}  // namespace

float nvfp4_tensor_scale(float largest_magnitude) {
  const float scale = largest_magnitude / (kE2M1Max * kE4M3Max);
  return std::isnormal(scale) ? std::exp2(std::ceil(std::log2(scale))) : 1.f;
}

void quantize_fp4(const QuantizeFp4Args& args) {
  const bool mx = args.format == WeightFormat::kMxfp4;
  DSV4_CHECK(mx || args.format == WeightFormat::kNvfp4, "{} is not FP4", name(args.format));
  const int group = mx ? kMxfp4Group : kNvfp4Group;
  Dim n("n"), k("k");
  expect("x", args.x, {DType::kF32}, {n, k});
  DSV4_CHECK(*k % group == 0, "k={} is not a multiple of {}", *k, group);
  expect("pairs", args.pairs, {DType::kU8}, {n, *k / 2});
  expect("scales", args.scales, {mx ? DType::kE8M0 : DType::kE4M3}, {n, *k / group});
  if (!args.importance.empty()) expect("importance", args.importance, {DType::kF32}, {k});
  std::atomic<bool> finite = true;
#pragma omp parallel for schedule(static) if (cpu::worth_sharing(200 * args.x.numel()))
  for (int64_t row = 0; row < *n; ++row) {
    if (!quantize_row(args, row, group)) finite = false;
  }
  if (!finite) report_not_finite(args.x);
}

}  // namespace dsv4
