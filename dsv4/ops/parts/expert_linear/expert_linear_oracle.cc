#include <cmath>

#include "dsv4/ops/oracle.h"
#include "dsv4/ops/parts/expert_linear/expert_linear_case.h"

namespace dsv4 {
namespace {

const WeightView& weight_of_row(const ExpertLinearArgs& args, int64_t row) {
  size_t e = 0;
  while (args.offsets.as<int32_t>()[e + 1] <= row) ++e;
  return args.weights[e];
}

}  // namespace

std::vector<double> expert_linear_oracle(const ExpertLinearArgs& args) {
  std::vector<double> out;
  for (int64_t r = 0; r < args.x.dim(0); ++r) {
    const std::vector<double> x = oracle::row(args.x, r);
    const WeightView& w = weight_of_row(args, r);
    for (int64_t n = 0; n < w.n; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < w.k; ++k) sum += x[static_cast<size_t>(k)] * weight_value(w, n, k);
      out.push_back(sum);
    }
  }
  return out;
}

double expert_linear_magnitude(const ExpertLinearArgs& args) {
  double most = 0;
  for (int64_t r = 0; r < args.x.dim(0); ++r) {
    const std::vector<double> x = oracle::row(args.x, r);
    const WeightView& w = weight_of_row(args, r);
    for (int64_t n = 0; n < w.n; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < w.k; ++k)
        sum += std::abs(x[static_cast<size_t>(k)] * weight_value(w, n, k));
      most = std::max(most, sum);
    }
  }
  return most;
}

}  // namespace dsv4
