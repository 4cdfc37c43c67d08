#include "dsv4/ops/parts/router/router.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>
#include "dsv4/base/not_finite.h"
#include "dsv4/cpu/parallel.h"

namespace dsv4::router_kernel::cpu {
namespace {

// Below -20, ln(1 + e^v) equals e^v to f32 precision, and its square root is accurate even where
// e^v would underflow.
float score(float logit) {
  if (logit < -20.f) return std::exp(0.5f * logit);
  const float softplus = logit > 20.f ? logit : std::log1p(std::exp(logit));
  return std::sqrt(softplus);
}

struct TokenBuffers {
  std::vector<float> scores, keys;  // [e] unbiased, biased
  std::vector<int32_t> order;       // [e]
};

// The k largest keys, none of which is NaN, in descending order; equal keys in ascending order of
// expert.
void choose_top(TokenBuffers& s, int64_t k, int32_t* chosen) {
  std::iota(s.order.begin(), s.order.end(), 0);
  const auto better = [&](int32_t a, int32_t b) {
    const float x = s.keys[static_cast<size_t>(a)], y = s.keys[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::partial_sort(s.order.begin(), s.order.begin() + k, s.order.end(), better);
  std::copy_n(s.order.begin(), k, chosen);
}

int64_t table_entry(const ConstTensorView& table, int64_t row, int64_t i) {
  return table.dtype == DType::kI64 ? table.row<int64_t>(row)[i] : table.row<int32_t>(row)[i];
}

// Token ids and table values come from outside the program: both are checked before anything is
// written.
void check_hash(const RouterArgs& args) {
  const int64_t vocabulary = args.tid2eid.dim(0), num_experts = args.logits.dim(1);
  for (int64_t t = 0; t < args.ids.dim(0); ++t) {
    const int32_t id = args.ids.as<int32_t>()[t];
    DSV4_CHECK(id >= 0 && id < vocabulary, "ids[{}] is {}, the table has {} rows", t, id,
               vocabulary);
    for (int64_t j = 0; j < args.tid2eid.dim(1); ++j) {
      const int64_t expert = table_entry(args.tid2eid, id, j);
      DSV4_CHECK(expert >= 0 && expert < num_experts, "tid2eid[{}, {}] is {}, there are {} experts",
                 id, j, expert, num_experts);
    }
  }
}

// False: the order of the keys is undefined, because one of them is NaN.
bool route_token(const RouterArgs& args, int64_t t, TokenBuffers& s) {
  const int64_t k = args.experts.dim(1);
  const float* logits = args.logits.row<float>(t);
  int32_t* chosen = args.experts.row<int32_t>(t);
  float* weights = args.weights.row<float>(t);
  std::transform(logits, logits + s.scores.size(), s.scores.begin(), score);
  if (args.tid2eid.empty()) {
    s.keys = s.scores;
    if (!args.bias.empty()) {
      for (size_t e = 0; e < s.keys.size(); ++e) s.keys[e] += args.bias.as<float>()[e];
    }
    if (std::any_of(s.keys.begin(), s.keys.end(), [](float key) { return std::isnan(key); }))
      return false;
    choose_top(s, k, chosen);
  } else {
    const int32_t id = args.ids.as<int32_t>()[t];
    for (int64_t j = 0; j < k; ++j) {
      chosen[j] = static_cast<int32_t>(table_entry(args.tid2eid, id, j));
    }
  }
  float sum = 0;
  for (int64_t j = 0; j < k; ++j) sum += s.scores[static_cast<size_t>(chosen[j])];
  for (int64_t j = 0; j < k; ++j) {
    const float own = s.scores[static_cast<size_t>(chosen[j])];
    weights[j] = (args.normalize ? own / sum : own) * args.route_scale;
  }
  return true;
}

}  // namespace

void run(const Context&, const RouterArgs& args) {
  if (!args.tid2eid.empty()) check_hash(args);
  const auto num_experts = static_cast<size_t>(args.logits.dim(1));
  int64_t bad_token = -1;
#pragma omp parallel if (dsv4::cpu::worth_sharing(30 * args.logits.numel()))
  {
    TokenBuffers scratch{std::vector<float>(num_experts), std::vector<float>(num_experts),
                         std::vector<int32_t>(num_experts)};
#pragma omp for
    for (int64_t t = 0; t < args.logits.dim(0); ++t) {
      if (route_token(args, t, scratch)) continue;
#pragma omp critical
      bad_token = t;
    }
  }
  if (bad_token >= 0)
    throw NotFinite(fmt::format("a logit or a bias of token {} is nan: it has no top {} experts",
                                bad_token, args.experts.dim(1)));
}

}  // namespace dsv4::router_kernel::cpu
