#include "dsv4/ops/xattn/attention/block_sparse_attention_case.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "dsv4/ops/oracle.h"

namespace dsv4 {
namespace {

using Vector = std::vector<double>;

Vector vector_at(const ConstTensorView& view, int64_t at) {
  Vector values;
  for (int64_t c = 0; c < view.dim(-1); ++c) values.push_back(oracle::value(view, at + c));
  return values;
}

// Positions of the keys that one query adds up.
std::vector<int> keys_of(const BlockSparseAttentionArgs& args, const PrefillSequence& s, int i,
                         int head, int position) {
  const int block = static_cast<int>(args.block);
  const int row = floor_div(position, block) - s.first_block(block);
  std::vector<int> keys;
  const auto add_block = [&](int k_block) {
    for (int j = k_block * block; j < std::min((k_block + 1) * block, s.keys); ++j) {
      if (!args.batch.causal || j <= position) keys.push_back(j);
    }
  };
  if (args.lists.empty()) {
    for (int j = 0; j < s.num_k_blocks(block); ++j) add_block(j);
    return keys;
  }
  const TensorMeta& meta = args.lists.indices;
  const int64_t at = (i * meta.dim(1) + head) * meta.dim(2) + row;
  for (int j = 0; j < args.lists.counts.as<int>()[at]; ++j) {
    add_block(args.lists.indices.as<int>()[at * meta.dim(3) + j]);
  }
  return keys;
}

// Adds the output to `out` [d_v]; returns the lse.
double attend(const Vector& q, const std::vector<Vector>& k, const std::vector<Vector>& v,
              const std::vector<int>& keys, double scale, double* out) {
  if (keys.empty()) return -std::numeric_limits<double>::infinity();
  Vector z;
  for (const int j : keys) {
    double dot = 0;
    for (size_t c = 0; c < q.size(); ++c) dot += q[c] * k[static_cast<size_t>(j)][c];
    z.push_back(dot * scale);
  }
  const double m = *std::max_element(z.begin(), z.end());
  double sum = 0;
  for (double& e : z) sum += e = std::exp(e - m);
  for (size_t n = 0; n < keys.size(); ++n) {
    const Vector& value = v[static_cast<size_t>(keys[n])];
    for (size_t c = 0; c < value.size(); ++c) out[c] += z[n] / sum * value[c];
  }
  return m + std::log(sum);
}

}  // namespace

BlockSparseAttentionWant block_sparse_attention_oracle(const BlockSparseAttentionArgs& args) {
  const int64_t t_q = args.q.dim(0), heads = args.q.dim(1), d_v = args.v.dim(-1);
  const int64_t group = heads / args.k.dim(-2);
  const KvAddress k_at = kv_address(args.k, args.page_table);
  const KvAddress v_at = kv_address(args.v, args.page_table);
  BlockSparseAttentionWant want;
  want.out.resize(static_cast<size_t>(t_q * heads * d_v));
  want.lse.resize(static_cast<size_t>(heads * t_q));
  for (int i = 0; i < args.batch.size(); ++i) {
    const PrefillSequence s = prefill_sequence(args.batch.cu_q.as<int>(),
                                               args.batch.cu_kv.as<int>(), i, args.batch.causal);
    for (int64_t head = 0; head < heads; ++head) {
      const int kv_head = static_cast<int>(head / group);
      std::vector<Vector> k, v;
      for (int j = 0; j < s.keys; ++j) {
        k.push_back(vector_at(args.k, k_at(i, s.first_kv, j, kv_head)));
        v.push_back(vector_at(args.v, v_at(i, s.first_kv, j, kv_head)));
      }
      for (int n = 0; n < s.queries; ++n) {
        const int64_t row = s.first_q + n;
        const Vector q = vector_at(args.q, row * args.q.stride[0] + head * args.q.stride[1]);
        const auto keys = keys_of(args, s, i, static_cast<int>(head), s.first_position + n);
        want.lse[static_cast<size_t>(head * t_q + row)] =
            attend(q, k, v, keys, static_cast<double>(args.scale),
                   want.out.data() + (row * heads + head) * d_v);
      }
    }
  }
  return want;
}

}  // namespace dsv4
