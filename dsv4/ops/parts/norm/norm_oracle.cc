#include "dsv4/ops/parts/norm/norm_case.h"

#include <cmath>

#include "dsv4/ops/oracle.h"

namespace dsv4 {

std::vector<double> rms_norm_oracle(const RmsNormArgs& args) {
  const int64_t rows = args.x.dim(0), d = args.x.dim(1);
  std::vector<double> out;
  for (int64_t t = 0; t < rows; ++t) {
    const std::vector<double> x = oracle::row(args.x, t);
    double sum = 0;
    for (const double v : x) sum += v * v;
    const double root = 1 / std::sqrt(sum / static_cast<double>(d) + static_cast<double>(args.eps));
    for (int64_t i = 0; i < d; ++i) {
      out.push_back(oracle::value(args.weight, i) * x[static_cast<size_t>(i)] * root);
    }
  }
  return out;
}

std::vector<double> head_norm_oracle(const Context& context, const HeadNormArgs& args) {
  const bool stepped = context.numerics == Numerics::kOfficial;
  const auto round = [&](double v) { return stepped ? oracle::bf16(v) : v; };
  const int64_t rows = args.x.dim(0), d = args.x.dim(1);
  std::vector<double> out;
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<double> x = oracle::row(args.x, r);
    double sum = 0;
    for (const double v : x) sum += round(v * v);
    const double mean = round(sum / static_cast<double>(d));
    const double root = round(1 / std::sqrt(round(mean + static_cast<double>(args.eps))));
    for (const double v : x) out.push_back(v * root);
  }
  return out;
}

}  // namespace dsv4
