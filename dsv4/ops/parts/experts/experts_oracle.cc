#include "dsv4/ops/parts/experts/experts_case.h"
#include "dsv4/ops/parts/experts/halves_case.h"

#include <algorithm>
#include <cmath>

#include "dsv4/formats/quant_group.h"
#include "dsv4/ops/oracle.h"

namespace dsv4 {
namespace {

using Vector = std::vector<double>;

// Q8 over groups of 128, dequantized.
Vector q8(const Vector& x) {
  Vector out;
  for (size_t start = 0; start < x.size(); start += 128) {
    const size_t count = std::min<size_t>(128, x.size() - start);
    std::vector<float> group(x.begin() + static_cast<int64_t>(start),
                             x.begin() + static_cast<int64_t>(start + count));
    std::vector<uint8_t> codes(count);
    const uint8_t scale = quantize_group_q8(group.data(), static_cast<int>(count), codes.data());
    for (const uint8_t code : codes) {
      out.push_back(static_cast<double>(e4m3_to_f32(code)) *
                    static_cast<double>(ue8m0_to_f32(scale)));
    }
  }
  return out;
}

// w x; under kOfficial with a quantized x if the format requires it, and a bf16 result.
Vector multiply(const WeightView& w, const Vector& x, bool official) {
  const Vector& in = official && w.quantized_activations() ? q8(x) : x;
  Vector y;
  for (int64_t n = 0; n < w.n; ++n) {
    double sum = 0;
    for (int64_t k = 0; k < w.k; ++k) sum += weight_value(w, n, k) * in[static_cast<size_t>(k)];
    y.push_back(official ? oracle::bf16(sum) : sum);
  }
  return y;
}

double activate(GateActivation activation, double v) {
  switch (activation) {
    case GateActivation::kSilu:
      return v / (1 + std::exp(-v));
    case GateActivation::kGelu:
      return v * std::erfc(-v / std::sqrt(2.0)) / 2;
    case GateActivation::kGeluTanh:
      break;
  }
  // 1 + tanh(z) = 2 / (1 + e^-2z)
  return v / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v)));
}

Vector hidden_of(const ExpertWeights& expert, const Vector& x, double weight,
                 GateActivation activation, double limit, bool official) {
  const Vector g = multiply(expert.w1, x, official), u = multiply(expert.w3, x, official);
  Vector h;
  for (size_t i = 0; i < g.size(); ++i) {
    const double gate = std::min(g[i], limit), up = std::clamp(u[i], -limit, limit);
    const double v = weight * (activate(activation, gate) * up);
    h.push_back(official ? oracle::bf16(v) : v);
  }
  return h;
}

double limit_of(float swiglu_limit) {
  return swiglu_limit > 0 ? static_cast<double>(swiglu_limit) : HUGE_VAL;
}

// Slot j of token t: the only expert with weight 1, where there are no ids.
size_t expert_of(const ConstTensorView& experts, int64_t t, int64_t j) {
  return experts.empty() ? size_t{0} : static_cast<size_t>(experts.row<int32_t>(t)[j]);
}
double weight_of(const ConstTensorView& weights, int64_t t, int64_t j) {
  return weights.empty() ? 1.0 : static_cast<double>(weights.row<float>(t)[j]);
}

// Row t of addend, if there is one.
void add_addend(const ConstTensorView& addend, int64_t t, Vector& acc) {
  if (addend.empty()) return;
  const Vector row = oracle::row(addend, t);
  for (size_t i = 0; i < acc.size(); ++i) acc[i] += row[i];
}

}  // namespace

std::vector<double> experts_oracle(const Context& context, const ExpertsArgs& args) {
  const bool official = context.numerics == Numerics::kOfficial;
  const double limit = limit_of(args.swiglu_limit);
  std::vector<double> out;
  for (int64_t t = 0; t < args.x.dim(0); ++t) {
    const Vector x = oracle::row(args.x, t);
    Vector acc = oracle::row(args.acc, t);
    if (!args.add) acc.assign(acc.size(), 0.0);
    for (int64_t j = 0; j < slots(args); ++j) {  // fp64: the order is irrelevant
      const ExpertWeights& expert = args.stack.file()[expert_of(args.experts, t, j)];
      const Vector h =
          hidden_of(expert, x, weight_of(args.weights, t, j), args.activation, limit, official);
      const Vector y = multiply(expert.w2, h, official);
      for (size_t i = 0; i < acc.size(); ++i) acc[i] += y[i];
    }
    add_addend(args.addend, t, acc);
    out.insert(out.end(), acc.begin(), acc.end());
  }
  return out;
}

namespace {

// sum_k |w[n, k] x[k]|
Vector magnitudes(const WeightView& w, const Vector& x) {
  Vector y;
  for (int64_t n = 0; n < w.n; ++n) {
    double sum = 0;
    for (int64_t k = 0; k < w.k; ++k)
      sum += std::abs(weight_value(w, n, k) * x[static_cast<size_t>(k)]);
    y.push_back(sum);
  }
  return y;
}

}  // namespace

double experts_magnitude(const ExpertsArgs& args) {
  constexpr double kSlope = 1.13;  // of the activations, at most
  const double limit = limit_of(args.swiglu_limit);
  double most = 0;
  for (int64_t t = 0; t < args.x.dim(0); ++t) {
    const Vector x = oracle::row(args.x, t);
    Vector sum(static_cast<size_t>(args.acc.dim(1)));
    for (int64_t j = 0; j < slots(args); ++j) {
      const ExpertWeights& expert = args.stack.file()[expert_of(args.experts, t, j)];
      const double weight = std::abs(weight_of(args.weights, t, j));
      const Vector g = multiply(expert.w1, x, false), u = multiply(expert.w3, x, false);
      const Vector of_g = magnitudes(expert.w1, x), of_u = magnitudes(expert.w3, x);
      Vector h;
      for (size_t i = 0; i < g.size(); ++i) {
        const double gate = std::abs(activate(args.activation, std::min(g[i], limit)));
        const double up = std::abs(std::clamp(u[i], -limit, limit));
        // Twice h: its own error, and that of the weights of down.
        h.push_back(weight * (kSlope * of_g[i] * up + gate * of_u[i] + 2 * gate * up));
      }
      const Vector y = magnitudes(expert.w2, h);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += y[i];
    }
    for (const double v : sum) most = std::max(most, v);
  }
  return most;
}

namespace {

// Pairs i = token * k + slot in the order of their rows of h.
std::vector<int64_t> in_order_of_experts(const ConstTensorView& experts, int64_t t, int64_t k) {
  std::vector<int64_t> order;
  for (int64_t i = 0; i < t * k; ++i) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return expert_of(experts, a / k, a % k) < expert_of(experts, b / k, b % k);
  });
  return order;
}

}  // namespace

std::vector<double> experts_hidden_oracle(const Context& context, const ExpertsHiddenArgs& args) {
  const bool official = context.numerics == Numerics::kOfficial;
  const int64_t t = args.x.dim(0), k = t == 0 ? 0 : args.hidden.dim(0) / t;
  std::vector<double> out;
  for (const int64_t i : in_order_of_experts(args.experts, t, k)) {
    const ExpertWeights& expert = args.stack.file()[expert_of(args.experts, i / k, i % k)];
    const Vector h =
        hidden_of(expert, oracle::row(args.x, i / k), weight_of(args.weights, i / k, i % k),
                  GateActivation::kSilu, limit_of(args.swiglu_limit), official);
    out.insert(out.end(), h.begin(), h.end());
  }
  return out;
}

std::vector<double> experts_output_oracle(const Context& context, const ExpertsOutputArgs& args) {
  const bool official = context.numerics == Numerics::kOfficial;
  const int64_t t = args.tokens(), k = t == 0 ? 0 : args.hidden.dim(0) / t;
  std::vector<int64_t> row(static_cast<size_t>(t * k));  // of h
  const std::vector<int64_t> order = in_order_of_experts(args.experts, t, k);
  for (size_t r = 0; r < order.size(); ++r)
    row[static_cast<size_t>(order[r])] = static_cast<int64_t>(r);
  std::vector<double> out;
  for (int64_t i = 0; i < t; ++i) {
    Vector acc = args.rows.empty() ? oracle::row(args.acc, i) : Vector();
    if (!args.add) acc.assign(acc.size(), 0.0);
    for (int64_t j = 0; j < k; ++j) {
      const ExpertWeights& expert = args.stack.file()[expert_of(args.experts, i, j)];
      const int64_t from = row[static_cast<size_t>(i * k + j)];
      const Vector y = multiply(expert.w2, oracle::row(args.hidden, from), official);
      if (!args.rows.empty()) out.insert(out.end(), y.begin(), y.end());
      for (size_t c = 0; c < acc.size(); ++c) acc[c] += y[c];
    }
    add_addend(args.addend, i, acc);
    out.insert(out.end(), acc.begin(), acc.end());
  }
  return out;
}

std::vector<double> experts_sum_oracle(const ExpertsSumArgs& args) {
  const int64_t k = args.experts.dim(1);
  std::vector<double> out;
  for (int64_t i = 0; i < args.acc.dim(0); ++i) {
    Vector acc = oracle::row(args.acc, i);
    if (!args.add) acc.assign(acc.size(), 0.0);
    for (int64_t j = 0; j < k; ++j) {  // fp64: the order is irrelevant
      const Vector y = oracle::row(args.rows, i * k + j);
      for (size_t c = 0; c < acc.size(); ++c) acc[c] += y[c];
    }
    add_addend(args.addend, i, acc);
    out.insert(out.end(), acc.begin(), acc.end());
  }
  return out;
}

}  // namespace dsv4
