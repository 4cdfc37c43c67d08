// Random weight matrices in every stored format, for the tests of ops that read weights.

#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "dsv4/base/bits.h"
#include "dsv4/formats/float16.h"
#include "dsv4/formats/kbit.h"
#include "dsv4/formats/weight.h"
#include "tests/harness/arena.h"

namespace dsv4::test {

// What a weight is stored as.
struct StoredAs {
  WeightFormat format;
  int bits = 0;  // of a k-bit weight
  bool e4m3_codebook = false;
};

inline constexpr StoredAs kAllStored[] = {{WeightFormat::kF32},     {WeightFormat::kBF16},
                                          {WeightFormat::kF16},     {WeightFormat::kFp8Block},
                                          {WeightFormat::kMxfp4},   {WeightFormat::kNvfp4},
                                          {WeightFormat::kKbit, 2}, {WeightFormat::kKbit, 3},
                                          {WeightFormat::kKbit, 4}, {WeightFormat::kKbit, 5}};

inline std::string name(const StoredAs& stored) {
  return stored.bits == 0 ? name(stored.format)
                          : fmt::format("k{}{}", stored.bits, stored.e4m3_codebook ? "-e4m3" : "");
}

// k of a weight must be a multiple of this.
inline int64_t column_multiple(WeightFormat format) {
  return format == WeightFormat::kMxfp4   ? kMxfp4Group
         : format == WeightFormat::kNvfp4 ? kNvfp4Group
         : format == WeightFormat::kKbit  ? kKbitBlock
                                          : 1;
}

// Every code but NaN.
inline void fill_e4m3_codes(const TensorView& view, Rng& rng) {
  for (int64_t i = 0; i < view.numel(); ++i) {
    const auto code = static_cast<uint8_t>(rng.bits());
    view.as<uint8_t>()[i] = (code & 0x7f) == 0x7f ? 0 : code;
  }
}

// One of nf, bnf and an asymmetric user's codebook with a value above 1. out: [2^bits]
inline void fill_codebook(const TensorView& out, int bits, Rng& rng) {
  const int64_t kind = rng.below(3);
  if (kind < 2) {
    const Codebook book = kind == 0 ? nf_codebook(bits) : bnf_codebook(bits);
    std::copy(book.values().begin(), book.values().end(), out.as<float>());
    return;
  }
  fill_uniform(out, rng, -0.6, 1.4);
  std::sort(out.as<float>(), out.as<float>() + out.numel());
}

// Planes of random codes; scales between 1/16 and 1/2 with a few zeros and subnormals.
inline void fill_kbit(Arena& arena, Rng& rng, const StoredAs& stored, WeightView& w) {
  const int bits = stored.bits;
  const int64_t blocks = w.k / kKbitBlock;
  const TensorView planes = arena.input(DType::kI32, {w.n, blocks * bits});
  for (int64_t i = 0; i < planes.numel(); ++i) {
    planes.as<uint32_t>()[i] = static_cast<uint32_t>(rng.bits());
  }
  const TensorView scale = arena.input(DType::kU8, {w.n, blocks});
  for (int64_t i = 0; i < scale.numel(); ++i) {
    scale.as<uint8_t>()[i] =
        static_cast<uint8_t>(rng.below(10) == 0 ? rng.below(20) : 0x70 + rng.below(0x30));
  }
  const TensorView codebook = arena.input(DType::kF32, {int64_t{1} << bits});
  if (stored.e4m3_codebook) {
    const Codebook book = e4m3_codebook(bits);
    std::copy(book.values().begin(), book.values().end(), codebook.as<float>());
  } else {
    fill_codebook(codebook, bits, rng);
  }
  w.bits = bits;
  w.e4m3_codebook = stored.e4m3_codebook;
  w.data = planes, w.scale = scale, w.codebook = codebook;
  w.scale2 = rng.below(2) == 0 ? 1.f : 0.5f;
}

// Codes are uniform over the format's codes, scales vary by row and group, values are about 1/8.
// `fp8_scale` is E8M0 or F32. The arena does not exchange them for others: kernels may read weights
// before they wait for the previous kernel.
inline WeightView random_weight(Arena& arena, Rng& rng, const StoredAs& stored, int64_t n,
                                int64_t k, DType fp8_scale = DType::kE8M0) {
  const WeightFormat format = stored.format;
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
  } else if (format == WeightFormat::kKbit) {
    fill_kbit(arena, rng, stored, w);
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
  for (const ConstTensorView& view : {w.data, w.scale, w.codebook})
    if (!view.empty()) arena.keep_order({view, const_cast<std::byte*>(view.data)});
  return w;
}

// `count` weights [n, k] in one allocation, at equal distances, as a loader lays out the experts of
// a layer. Codebooks are shared; scale2 differs.
inline std::vector<WeightView> random_stack(Arena& arena, Rng& rng, const StoredAs& stored,
                                            int64_t count, int64_t n, int64_t k) {
  // Scale blocks of one matrix hold no rows of the next.
  const int64_t rows = stored.format == WeightFormat::kFp8Block ? align_up(n, kFp8BlockSize) : n;
  const WeightView all = random_weight(arena, rng, stored, count * rows, k);
  std::vector<WeightView> stack;
  for (int64_t i = 0; i < count; ++i) {
    WeightView& w = stack.emplace_back(all.rows(i * rows, i * rows + n));
    if (stored.format == WeightFormat::kNvfp4 || stored.format == WeightFormat::kKbit)
      w.scale2 *= static_cast<float>(rng.uniform(0.5, 1.5));
  }
  return stack;
}

}  // namespace dsv4::test
