#include "dsv4/ops/parts/rope/rope_case.h"

#include <cmath>

#include "dsv4/ops/oracle.h"

namespace dsv4 {

std::vector<double> rope_oracle(const RopeArgs& args) {
  const int64_t heads = args.x.dim(1), d = args.x.dim(2), pairs = args.freqs.dim(0);
  std::vector<double> want;
  for (int64_t r = 0; r < args.x.dim(0) * heads; ++r) {
    std::vector<double> x = oracle::row(args.x, r);
    const auto position = static_cast<float>(oracle::value(args.positions, r / heads));
    for (int64_t i = 0; i < pairs; ++i) {
      // The angle itself is defined as an f32 product; everything after it is exact.
      const float phi = position * static_cast<float>(oracle::value(args.freqs, i));
      const double c = std::cos(static_cast<double>(phi));
      const double s = (args.inverse ? -1 : 1) * std::sin(static_cast<double>(phi));
      double& first = x[static_cast<size_t>(d - 2 * pairs + 2 * i)];
      double& second = x[static_cast<size_t>(d - 2 * pairs + 2 * i + 1)];
      const double a = first, b = second;
      first = a * c - b * s;
      second = a * s + b * c;
    }
    want.insert(want.end(), x.begin(), x.end());
  }
  return want;
}

}  // namespace dsv4
