// The definitions of docs/spec/dsv4.md 0.4 on real numbers: codes are the nearest values on the
// grid, scales are found by comparing powers of two. No bit manipulation of formats/ is shared.

#include "dsv4/ops/parts/quant/quant_case.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "dsv4/ops/oracle.h"

namespace dsv4 {
namespace {

// Grid with `mantissa` bits after the leading one, constant below 2^min_exponent, saturating; ties
// to even multiples of the step. nearbyint rounds to even in the default mode.
struct Grid {
  int mantissa, min_exponent;
  double largest, floor;  // floor: of the group maximum
};
constexpr Grid kE4M3Grid = {3, -6, 448, 1e-4};
constexpr Grid kE2M1Grid = {1, 0, 6, 6 * 0x1p-126};

double nearest(const Grid& grid, double v) {
  if (v == 0 || std::isnan(v)) return v;
  if (std::abs(v) >= grid.largest) return std::copysign(grid.largest, v);
  const int exponent = std::max(std::ilogb(v), grid.min_exponent);
  const double step = std::ldexp(1.0, exponent - grid.mantissa);
  return std::clamp(std::nearbyint(v / step) * step, -grid.largest, grid.largest);
}

// Smallest power of two >= a * fl32(1/largest), the product rounded to f32 as the reference does.
double scale_of(const Grid& grid, const double* x, int64_t n) {
  auto a = static_cast<double>(static_cast<float>(grid.floor));
  for (int64_t i = 0; i < n; ++i) a = std::max(a, std::abs(x[i]));
  const double z =
      static_cast<double>(static_cast<float>(a) * (1.f / static_cast<float>(grid.largest)));
  double s = std::ldexp(1.0, -127);
  while (s < z) s *= 2;
  return s;
}

// Calls group(x, n, scale, offset into x) for each group of each row.
template <class Group>
void for_groups(const ConstTensorView& x, int64_t size, const Grid& grid, const Group& group) {
  const int64_t k = x.dim(1);
  for (int64_t t = 0; t < x.dim(0); ++t) {
    const std::vector<double> values = oracle::row(x, t);
    for (int64_t i = 0; i < k; i += size) {
      const int64_t n = std::min(size, k - i);
      group(values.data() + i, n, scale_of(grid, values.data() + i, n));
    }
  }
}

}  // namespace

QuantizeQ8Want quantize_q8_oracle(const QuantizeQ8Args& args) {
  QuantizeQ8Want want;
  for_groups(args.x, args.group, kE4M3Grid, [&](const double* x, int64_t n, double s) {
    for (int64_t i = 0; i < n; ++i) want.codes.push_back(nearest(kE4M3Grid, x[i] / s));
    want.scales.push_back(s);
  });
  return want;
}

std::vector<double> fake_quant_oracle(const FakeQuantArgs& args) {
  const Grid& grid = args.format == FakeQuantFormat::kS8 ? kE4M3Grid : kE2M1Grid;
  std::vector<double> want;
  for_groups(args.x, args.group, grid, [&](const double* x, int64_t n, double s) {
    for (int64_t i = 0; i < n; ++i) want.push_back(nearest(grid, x[i] / s) * s);
  });
  return want;
}

std::vector<double> hadamard_oracle(const HadamardArgs& args) {
  const int64_t n = args.x.dim(1);
  std::vector<double> want;
  for (int64_t t = 0; t < args.x.dim(0); ++t) {
    const std::vector<double> x = oracle::row(args.x, t);
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) {
        const bool odd = std::popcount(static_cast<uint64_t>(i & j)) % 2 != 0;
        sum += odd ? -x[static_cast<size_t>(i)] : x[static_cast<size_t>(i)];
      }
      want.push_back(sum / std::sqrt(static_cast<double>(n)));
    }
  }
  return want;
}

}  // namespace dsv4
