// Random weight matrices in every stored format, for the tests of ops that read weights.

#pragma once

#include "dsv4/base/bits.h"
#include "dsv4/formats/float16.h"
#include "dsv4/formats/weight.h"
#include "tests/harness/arena.h"

namespace dsv4::test {

inline constexpr WeightFormat kAllWeightFormats[] = {WeightFormat::kF32,   WeightFormat::kBF16,
                                                     WeightFormat::kF16,   WeightFormat::kFp8Block,
                                                     WeightFormat::kMxfp4, WeightFormat::kNvfp4};

// k of a weight must be a multiple of this.
inline int64_t column_multiple(WeightFormat format) {
  return format == WeightFormat::kMxfp4   ? kMxfp4Group
         : format == WeightFormat::kNvfp4 ? kNvfp4Group
                                          : 1;
}

// Every code but NaN.
inline void fill_e4m3_codes(const TensorView& view, Rng& rng) {
  for (int64_t i = 0; i < view.numel(); ++i) {
    const auto code = static_cast<uint8_t>(rng.bits());
    view.as<uint8_t>()[i] = (code & 0x7f) == 0x7f ? 0 : code;
  }
}

// Codes are uniform over the format's codes, scales vary by row and group, values are about 1/8.
// `fp8_scale` is E8M0 or F32.
inline WeightView random_weight(Arena& arena, Rng& rng, WeightFormat format, int64_t n, int64_t k,
                                DType fp8_scale = DType::kE8M0) {
  WeightView w{.format = format, .n = n, .k = k};
  const auto bytes = [&](const TensorView& view, int64_t low, int64_t high) {
    for (int64_t i = 0; i < view.numel(); ++i)
      view.as<uint8_t>()[i] = static_cast<uint8_t>(low + rng.below(high - low));
    return view;
  };
  if (format == WeightFormat::kF32 || format == WeightFormat::kBF16) {
    const DType dtype = format == WeightFormat::kF32 ? DType::kF32 : DType::kBF16;
    const TensorView data = arena.input(dtype, {n, k});
    fill_normal(data, rng, 0.125);
    w.data = data;
  } else if (format == WeightFormat::kF16) {
    const TensorView data = arena.input(DType::kF16, {n, k});
    for (int64_t i = 0; i < data.numel(); ++i) {  // |value| < 1, subnormals included
      data.as<uint16_t>()[i] = static_cast<uint16_t>(rng.bits() & 0xbbffu);
    }
    w.data = data;
  } else if (format == WeightFormat::kFp8Block) {
    const TensorView data = arena.input(DType::kE4M3, {n, k});
    fill_e4m3_codes(data, rng);
    const TensorView scale =
        arena.input(fp8_scale, {ceil_div(n, kFp8BlockSize), ceil_div(k, kFp8BlockSize)});
    if (fp8_scale == DType::kF32) {
      fill_uniform(scale, rng, 0.0005, 0.004);
    } else {
      bytes(scale, 116, 120);
    }
    w.data = data, w.scale = scale;
  } else {
    w.data = bytes(arena.input(DType::kU8, {n, k / 2}), 0, 256);
    if (format == WeightFormat::kMxfp4) {
      w.scale = bytes(arena.input(DType::kE8M0, {n, k / kMxfp4Group}), 121, 125);
    } else {
      const TensorView scale = arena.input(DType::kE4M3, {n, k / kNvfp4Group});
      fill_uniform(scale, rng, 0.5, 400);
      w.scale = scale;
      w.scale2 = 0.00021f;
    }
  }
  return w;
}

}  // namespace dsv4::test
