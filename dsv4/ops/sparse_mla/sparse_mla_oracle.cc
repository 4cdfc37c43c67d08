#include "dsv4/ops/sparse_mla/sparse_mla_oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dsv4/ops/oracle.h"

namespace dsv4 {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
using Vector = std::vector<double>;

// The valid rows of one query, window first.
std::vector<Vector> keys_of(const SparseMlaArgs& args, int64_t query) {
  std::vector<Vector> keys;
  for (const KvList* list : {&args.window, &args.compressed}) {
    for (int64_t j = 0; list->rows.rank != 0 && j < list->rows.dim(1); ++j) {
      const int32_t id = list->rows.row<int32_t>(query)[j];
      if (id < 0) continue;
      std::vector<float> row(static_cast<size_t>(list->pool.layout.width()));
      load_row(list->pool, id, row.data());
      keys.emplace_back(row.begin(), row.end());
    }
  }
  return keys;
}

}  // namespace

SparseMlaWant sparse_mla_oracle(const Context& context, const SparseMlaArgs& args) {
  const bool official = context.numerics == Numerics::kOfficial;
  const int64_t t = args.q.dim(0), h = args.q.dim(1), d = args.q.dim(2);
  SparseMlaWant want;
  for (int64_t i = 0; i < t * h; ++i) {
    const std::vector<Vector> keys = keys_of(args, i / h);
    const Vector q = oracle::row(args.q, i);
    Vector z, out(static_cast<size_t>(d));
    for (const Vector& k : keys) {
      double dot = 0;
      for (size_t c = 0; c < k.size(); ++c) dot += q[c] * k[c];
      z.push_back(dot * static_cast<double>(args.scale));
    }
    const double m = keys.empty() ? 0 : *std::max_element(z.begin(), z.end());
    double sum = 0;
    for (size_t j = 0; j < keys.size(); ++j) {
      const double e = std::exp(z[j] - m);
      sum += e;
      const double p = official ? oracle::bf16(e) : e;
      for (size_t c = 0; c < out.size(); ++c) out[c] += p * keys[j][c];
    }
    want.lse.push_back(keys.empty() ? kInfinity : m + std::log(sum));
    if (!args.sink.empty()) sum += std::exp(oracle::value(args.sink, i % h) - m);
    for (const double v : out) want.out.push_back(keys.empty() ? 0 : v / sum);
  }
  return want;
}

}  // namespace dsv4
