#include "dsv4/ops/parts/mhc/mhc_case.h"

#include <algorithm>
#include <cmath>

#include "dsv4/ops/oracle.h"

namespace dsv4 {
namespace {

using Vector = std::vector<double>;

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// X_t, flattened stream-major.
Vector token_streams(const ConstTensorView& streams, int64_t token) {
  const int64_t n = streams.dim(1) * streams.dim(2);
  Vector x;
  for (int64_t i = 0; i < n; ++i) x.push_back(oracle::value(streams, token * n + i));
  return x;
}

// mix_i = (x . fn_i) * rho
Vector mixes(const Vector& x, const ConstTensorView& fn, float norm_eps) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  const double mean = squares / static_cast<double>(x.size());
  Vector mix;
  for (int64_t i = 0; i < fn.dim(0); ++i) {
    const Vector row = oracle::row(fn, i);
    double dot = 0;
    for (size_t c = 0; c < x.size(); ++c) dot += x[c] * row[c];
    mix.push_back(dot / std::sqrt(mean + static_cast<double>(norm_eps)));
  }
  return mix;
}

// sum_j pre_j X_j
void append_mixed(const Vector& x, const Vector& mix, const ConstTensorView& scale,
                  const ConstTensorView& base, int64_t m, float eps, Vector& out) {
  const size_t d = x.size() / static_cast<size_t>(m);
  for (size_t c = 0; c < d; ++c) {
    double sum = 0;
    for (size_t j = 0; j < static_cast<size_t>(m); ++j) {
      const double gate =
          mix[j] * oracle::value(scale, 0) + oracle::value(base, static_cast<int64_t>(j));
      sum += (sigmoid(gate) + static_cast<double>(eps)) * x[j * d + c];
    }
    out.push_back(sum);
  }
}

// docs/spec/dsv4.md 8.2 on b[j][k].
void sinkhorn(std::vector<Vector>& b, int iters, double eps) {
  const size_t m = b.size();
  const auto rows = [&](double extra) {
    for (Vector& row : b) {
      double sum = 0;
      for (const double v : row) sum += v;
      for (double& v : row) v /= sum + extra;
    }
  };
  const auto columns = [&] {
    for (size_t k = 0; k < m; ++k) {
      double sum = 0;
      for (size_t j = 0; j < m; ++j) sum += b[j][k];
      for (size_t j = 0; j < m; ++j) b[j][k] /= sum + eps;
    }
  };
  for (Vector& row : b) {
    const double largest = *std::max_element(row.begin(), row.end());
    for (double& v : row) v = std::exp(v - largest);
  }
  rows(0);
  for (Vector& row : b) {
    for (double& v : row) v += eps;
  }
  columns();
  for (int i = 1; i < iters; ++i) {
    rows(eps);
    columns();
  }
}

}  // namespace

HcPreWant hc_pre_oracle(const HcPreArgs& args) {
  const auto m = static_cast<size_t>(args.streams.dim(1));
  HcPreWant want;
  for (int64_t t = 0; t < args.streams.dim(0); ++t) {
    const Vector x = token_streams(args.streams, t), mix = mixes(x, args.fn, args.norm_eps);
    append_mixed(x, mix, args.scale, args.base, args.streams.dim(1), args.hc_eps, want.out);
    const auto gate = [&](size_t i, int64_t part) {
      return mix[i] * oracle::value(args.scale, part) +
             oracle::value(args.base, static_cast<int64_t>(i));
    };
    for (size_t j = 0; j < m; ++j) want.post.push_back(2 * sigmoid(gate(m + j, 1)));
    std::vector<Vector> comb(m);
    for (size_t j = 0; j < m; ++j) {
      for (size_t k = 0; k < m; ++k) comb[j].push_back(gate(2 * m + m * j + k, 2));
    }
    sinkhorn(comb, args.sinkhorn_iters, static_cast<double>(args.hc_eps));
    for (const Vector& row : comb) want.comb.insert(want.comb.end(), row.begin(), row.end());
  }
  return want;
}

std::vector<double> hc_post_oracle(const HcPostArgs& args) {
  const int64_t m = args.streams.dim(1), d = args.streams.dim(2);
  Vector out;
  for (int64_t t = 0; t < args.streams.dim(0); ++t) {
    const Vector x = token_streams(args.streams, t);
    Vector y = oracle::row(args.y, t);
    for (double& v : y) v = args.streams.dtype == DType::kBF16 ? oracle::bf16(v) : v;
    for (int64_t k = 0; k < m; ++k) {
      for (int64_t c = 0; c < d; ++c) {
        double sum = oracle::value(args.post, t * m + k) * y[static_cast<size_t>(c)];
        for (int64_t j = 0; j < m; ++j) {
          sum += oracle::value(args.comb, (t * m + j) * m + k) * x[static_cast<size_t>(j * d + c)];
        }
        out.push_back(sum);
      }
    }
  }
  return out;
}

std::vector<double> hc_head_oracle(const HcHeadArgs& args) {
  Vector out;
  for (int64_t t = 0; t < args.streams.dim(0); ++t) {
    const Vector x = token_streams(args.streams, t);
    append_mixed(x, mixes(x, args.fn, args.norm_eps), args.scale, args.base, args.streams.dim(1),
                 args.hc_eps, out);
  }
  return out;
}

std::vector<double> hc_mean_oracle(const HcMeanArgs& args) {
  const int64_t m = args.streams.dim(1), d = args.streams.dim(2);
  Vector out;
  for (int64_t t = 0; t < args.streams.dim(0); ++t) {
    const Vector x = token_streams(args.streams, t);
    for (int64_t c = 0; c < d; ++c) {
      double sum = 0;
      for (int64_t j = 0; j < m; ++j) sum += x[static_cast<size_t>(j * d + c)];
      out.push_back(sum / static_cast<double>(m));
    }
  }
  return out;
}

}  // namespace dsv4
