#include "dsv4/ops/kbit/quantize_kbit_case.h"

#include <algorithm>
#include <cmath>

#include "dsv4/formats/e4m4.h"
#include "dsv4/ops/oracle.h"

namespace dsv4 {
namespace {

// docs/spec/lowbit.md 1.2, "encode of v > 0", in doubles: the logarithm is exact.
int encode_scale(double v) {
  if (v <= 0) return 0;
  const int u = std::ilogb(v), e = std::clamp(u + 11, 0, 15);
  const double m = e > 0 ? (v / std::exp2(u) - 1) * 16 : v / std::exp2(-10) * 16;
  return e << 4 | static_cast<int>(std::clamp(std::nearbyint(m), 0., 15.));
}

}  // namespace

QuantizedKbit quantize_kbit_reference_oracle(const QuantizeKbitArgs& args) {
  QuantizedKbit out;
  const int bits = args.codebook.bits;
  for (int64_t r = 0; r < args.x.dim(0); ++r) {
    std::vector<double> x = oracle::row(args.x, r);
    x.resize(static_cast<size_t>(args.scales.dim(1) * 32));
    for (size_t begin = 0; begin < x.size(); begin += 32) {
      std::array<float, 32> z;
      float absmax = 0;
      for (size_t i = 0; i < 32; ++i) {
        z[i] = static_cast<float>(x[begin + i] / static_cast<double>(args.tensor_scale));
        absmax = std::max(absmax, std::abs(z[i]));
      }
      std::array<uint32_t, 5> planes{};
      for (size_t i = 0; i < 32; ++i) {
        const float t = z[i] / std::max(absmax, 1e-8f);
        uint32_t code = 0;
        for (uint32_t c = 1; c < 1u << bits; ++c) {
          if (std::abs(t - args.codebook.value[c]) < std::abs(t - args.codebook.value[code]))
            code = c;
        }
        for (size_t j = 0; j < 5; ++j) planes[j] |= (code >> j & 1) << i;
      }
      for (size_t j = 0; j < static_cast<size_t>(bits); ++j)
        out.planes.push_back(static_cast<double>(static_cast<int32_t>(planes[j])));
      out.scales.push_back(encode_scale(static_cast<double>(absmax)));
    }
  }
  return out;
}

std::array<double, 256> scale_errors_oracle(const Codebook& codebook, std::span<const float> z,
                                            std::span<const double> weights) {
  std::array<double, 256> errors{};
  for (size_t byte = 0; byte < 256; ++byte) {
    const auto scale = static_cast<double>(e4m4_to_f32(static_cast<uint8_t>(byte)));
    for (size_t i = 0; i < z.size(); ++i) {
      double least = INFINITY;
      for (const float value : codebook.values()) {
        const double distance = static_cast<double>(value) * scale - static_cast<double>(z[i]);
        least = std::min(least, distance * distance);
      }
      errors[byte] += (weights.empty() ? 1. : weights[i]) * least;
    }
  }
  return errors;
}

}  // namespace dsv4
