#include "dsv4/ops/model/sparse_mla/sparse_mla_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "dsv4/ops/oracle.h"
#include "dsv4/ops/parts/rope/rope_case.h"

namespace dsv4 {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
using Vector = std::vector<double>;

// The valid keys of one query, window first.
std::vector<Vector> keys_of(const SparseMlaArgs& args, int64_t request, int64_t query) {
  std::vector<Vector> keys;
  for (const KvList* list : {&args.window, &args.compressed}) {
    const TensorMeta& meta = list->indices;
    int64_t n = list->topk();
    if (!list->topk_length.empty()) {
      n = std::min(n, int64_t{list->topk_length.as<int32_t>()[request]});
    }
    for (int64_t j = 0; j < n; ++j) {
      const int32_t index =
          list->indices.as<int32_t>()[request * meta.stride[0] + query * meta.stride[1] + j];
      if (index < 0 || index >= list->pool.num_rows()) continue;
      std::vector<float> row(static_cast<size_t>(list->pool.layout.width()));
      load_row(list->pool, index, row.data());
      keys.emplace_back(row.begin(), row.end());
    }
  }
  return keys;
}

SparseMlaHeadWant attend(const Context& context, const SparseMlaArgs& args, const Vector& q,
                         const std::vector<Vector>& keys, int64_t head) {
  SparseMlaHeadWant want{.out = Vector(static_cast<size_t>(args.out.dim(3))),
                         .lse = kInfinity,
                         .max_logit = -kInfinity};
  if (keys.empty()) return want;
  Vector z;
  for (const Vector& k : keys) {
    double dot = 0;
    for (size_t c = 0; c < k.size(); ++c) dot += q[c] * k[c];
    z.push_back(dot * static_cast<double>(args.scale));
  }
  const double m = *std::max_element(z.begin(), z.end());
  double sum = 0;
  for (size_t j = 0; j < keys.size(); ++j) {
    const double e = std::exp(z[j] - m);
    sum += e;
    const double p = context.numerics == Numerics::kOfficial ? oracle::bf16(e) : e;
    for (size_t c = 0; c < want.out.size(); ++c) want.out[c] += p * keys[j][c];
  }
  want.max_logit = m;
  want.lse = m + std::log(sum);
  if (!args.normalized) return want;
  if (!args.sink.empty()) sum += std::exp(oracle::value(args.sink, head) - m);
  for (double& v : want.out) v /= sum;
  return want;
}

// out, rounded by its store, rotated back.
Vector rotated_back(const SparseMlaArgs& args, const Vector& out) {
  const int64_t queries = args.out.dim(0) * args.out.dim(1), h = args.out.dim(2);
  const Buffer stored = oracle::stored(args.out.dtype, {queries, h, args.out.dim(3)}, out);
  return rope_oracle({.x = stored,
                      .positions = args.inverse_rope.positions.reshape({queries}),
                      .freqs = args.inverse_rope.freqs,
                      .inverse = true});
}

Vector query_head(const ConstTensorView& q, int64_t request, int64_t query, int64_t head) {
  Vector values;
  const int64_t at = request * q.stride[0] + query * q.stride[1] + head * q.stride[2];
  for (int64_t c = 0; c < q.dim(3); ++c) values.push_back(oracle::value(q, at + c));
  return values;
}

}  // namespace

std::vector<SparseMlaHeadWant> sparse_mla_oracle(const Context& context, const SparseMlaArgs& args,
                                                 int64_t request, int64_t query,
                                                 std::span<const int64_t> heads) {
  const std::vector<Vector> keys = keys_of(args, request, query);
  std::vector<SparseMlaHeadWant> want;
  for (const int64_t head : heads) {
    want.push_back(attend(context, args, query_head(args.q, request, query, head), keys, head));
  }
  return want;
}

SparseMlaWant sparse_mla_oracle(const Context& context, const SparseMlaArgs& args) {
  const int64_t b = args.q.dim(0), s_q = args.q.dim(1), h = args.q.dim(2);
  std::vector<int64_t> heads(static_cast<size_t>(h));
  std::iota(heads.begin(), heads.end(), 0);
  SparseMlaWant want;
  want.lse.resize(static_cast<size_t>(b * h * s_q));
  want.max_logits = want.lse;
  for (int64_t i = 0; i < b * s_q; ++i) {
    const int64_t request = i / s_q, query = i % s_q;
    const auto of_heads = sparse_mla_oracle(context, args, request, query, heads);
    for (int64_t head = 0; head < h; ++head) {
      const SparseMlaHeadWant& one = of_heads[static_cast<size_t>(head)];
      want.out.insert(want.out.end(), one.out.begin(), one.out.end());
      const auto at = static_cast<size_t>((request * h + head) * s_q + query);
      want.lse[at] = one.lse;
      want.max_logits[at] = one.max_logit;
    }
  }
  if (args.inverse_rope.positions.rank > 0) want.out = rotated_back(args, want.out);
  return want;
}

}  // namespace dsv4
