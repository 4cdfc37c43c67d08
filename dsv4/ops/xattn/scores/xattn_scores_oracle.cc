#include "dsv4/ops/xattn/scores/xattn_scores_case.h"

#include <algorithm>
#include <cmath>

#include "dsv4/ops/oracle.h"

namespace dsv4 {
namespace {

using Vector = std::vector<double>;

Vector vector_at(const ConstTensorView& view, int64_t at) {
  Vector values;
  for (int64_t c = 0; c < view.dim(-1); ++c) values.push_back(oracle::value(view, at + c));
  return values;
}

double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t c = 0; c < a.size(); ++c) sum += a[c] * b[c];
  return sum;
}

// Queries and keys of a head of a sequence by position.
struct Head {
  const PrefillSequence& s;
  std::vector<Vector> q, k;
};

// The antidiagonal of the groups r and c.
double score(const Head& head, int r, int c, int stride) {
  double sum = 0;
  for (int t = 0; t < stride; ++t) {
    const int query = r * stride + stride - 1 - t - head.s.first_position, key = c * stride + t;
    if (query < 0 || query >= head.s.queries || key >= head.s.keys) continue;
    sum += dot(head.q[static_cast<size_t>(query)], head.k[static_cast<size_t>(key)]);
  }
  return sum;
}

void add_head(const XattnScoresArgs& args, const Head& head, double* sums) {
  const int stride = static_cast<int>(args.stride), block = static_cast<int>(args.block);
  const double scale = static_cast<double>(args.scale) / stride;
  int before = -1 << 30;
  for (int query = 0; query < head.s.queries; ++query) {
    const int position = head.s.first_position + query, r = floor_div(position, stride);
    if (r == before) continue;  // one row for every group with a query
    before = r;
    Vector z;
    for (int c = 0; c * stride < head.s.keys && (!args.batch.causal || c <= r); ++c) {
      z.push_back(scale * score(head, r, c, stride));
    }
    if (z.empty()) continue;
    const double m = *std::max_element(z.begin(), z.end());
    double total = 0;
    for (double& e : z) total += e = std::exp(e - m);
    const int row = floor_div(position, block) - head.s.first_block(block);
    for (size_t c = 0; c < z.size(); ++c) {
      sums[row * args.sums.dim(3) + static_cast<int>(c) * stride / block] += z[c] / total;
    }
  }
}

}  // namespace

std::vector<double> xattn_scores_oracle(const XattnScoresArgs& args) {
  const int64_t heads = args.q.dim(1), group = heads / args.k.dim(-2);
  const KvAddress k_at = kv_address(args.k, args.page_table);
  std::vector<double> sums(static_cast<size_t>(args.sums.numel()));
  for (int i = 0; i < args.batch.size(); ++i) {
    const PrefillSequence s = prefill_sequence(args.batch.cu_q.as<int>(),
                                               args.batch.cu_kv.as<int>(), i, args.batch.causal);
    for (int64_t h = 0; h < heads; ++h) {
      Head head{.s = s, .q = {}, .k = {}};
      for (int n = 0; n < s.queries; ++n) {
        head.q.push_back(
            vector_at(args.q, (s.first_q + n) * args.q.stride[0] + h * args.q.stride[1]));
      }
      for (int j = 0; j < s.keys; ++j) {
        head.k.push_back(vector_at(args.k, k_at(i, s.first_kv, j, static_cast<int>(h / group))));
      }
      add_head(args, head, sums.data() + (i * heads + h) * args.sums.dim(2) * args.sums.dim(3));
    }
  }
  return sums;
}

}  // namespace dsv4
