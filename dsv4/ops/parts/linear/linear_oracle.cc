#include "dsv4/ops/parts/linear/linear_case.h"

#include <algorithm>
#include <cmath>

#include "dsv4/base/bits.h"
#include "dsv4/ops/gemm/gemm.h"
#include "dsv4/ops/oracle.h"
#include "dsv4/ops/parts/quant/quant_case.h"

namespace dsv4 {
namespace {

// What is multiplied: with quantize_x, Q8 of x.
struct Multiplied {
  explicit Multiplied(const LinearArgs& given) : args(given) {
    if (!args.quantize_x) return;
    const QuantizeQ8Want q8 = quantize_q8_oracle({.x = args.x, .group = kActivationGroup});
    const int64_t t = args.x.dim(0), k = args.x.dim(1);
    codes = oracle::stored(DType::kE4M3, {t, k}, q8.codes);
    scales = oracle::stored(DType::kE8M0, {t, ceil_div(k, kActivationGroup)}, q8.scales);
    args.x = codes, args.x_scale = scales;
  }
  LinearArgs args;
  Buffer codes, scales;
};

// [groups * k] values of token t
std::vector<double> activations(const LinearArgs& args, int64_t t) {
  std::vector<double> x = oracle::row(args.x, t);
  if (args.x.dtype != DType::kE4M3) return x;
  const std::vector<double> scale = oracle::row(args.x_scale, t);
  const auto k = static_cast<size_t>(args.weight.k),
             scales = scale.size() / static_cast<size_t>(args.groups);
  for (size_t c = 0; c < x.size(); ++c) x[c] *= scale[c / k * scales + c % k / 128];
  return x;
}

template <class Term>
std::vector<double> sums(const LinearArgs& given, const Term& term) {
  const Multiplied multiplied(given);
  const LinearArgs& args = multiplied.args;
  const int64_t tokens = args.x.dim(0), n = args.weight.n, k = args.weight.k;
  std::vector<double> out(static_cast<size_t>(tokens * n)), w(static_cast<size_t>(k));
  std::vector<std::vector<double>> x;
  for (int64_t t = 0; t < tokens; ++t) x.push_back(activations(args, t));
  for (int64_t i = 0; i < n; ++i) {
    const auto first = static_cast<size_t>(i / (n / args.groups) * k);  // column of x
    for (int64_t c = 0; c < k; ++c) w[static_cast<size_t>(c)] = weight_value(args.weight, i, c);
    for (int64_t t = 0; t < tokens; ++t) {
      double sum = 0;
      for (size_t c = 0; c < w.size(); ++c)
        sum += term(x[static_cast<size_t>(t)][first + c] * w[c]);
      out[static_cast<size_t>(t * n + i)] = sum;
    }
  }
  return out;
}

}  // namespace

std::vector<double> linear_oracle(const LinearArgs& args) {
  return sums(args, [](double product) { return product; });
}

double linear_magnitude(const LinearArgs& args) {
  double largest = 0;
  for (const double s : sums(args, [](double product) { return std::abs(product); })) {
    largest = std::max(largest, s);
  }
  return largest;
}

std::vector<double> projection_oracle(const Context& context, const ConstTensorView& x,
                                      const WeightView& weight) {
  const bool quantize = context.numerics == Numerics::kOfficial && weight.quantized_activations();
  return linear_oracle({.x = x, .weight = weight, .quantize_x = quantize});
}

}  // namespace dsv4
