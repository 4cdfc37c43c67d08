#include "dsv4/ops/parts/router/router_case.h"

#include <cmath>
#include <limits>

#include "dsv4/ops/oracle.h"

namespace dsv4 {
namespace {

double score(double v) {
  return std::sqrt(v > 20 ? v : std::log1p(std::exp(v)));
}

// Selects the first largest remaining key k times, so equal keys go to the lowest id.
std::vector<size_t> top(std::vector<double> keys, int64_t k) {
  std::vector<size_t> chosen;
  while (static_cast<int64_t>(chosen.size()) < k) {
    size_t best = 0;
    for (size_t e = 1; e < keys.size(); ++e) {
      if (keys[e] > keys[best]) best = e;
    }
    chosen.push_back(best);
    keys[best] = -std::numeric_limits<double>::infinity();
  }
  return chosen;
}

}  // namespace

RouterAnswer router_oracle(const RouterArgs& args) {
  RouterAnswer answer;
  const int64_t k = args.experts.dim(1);
  for (int64_t t = 0; t < args.logits.dim(0); ++t) {
    std::vector<double> scores = oracle::row(args.logits, t);
    for (double& s : scores) s = score(s);
    std::vector<size_t> chosen;
    if (args.tid2eid.empty()) {
      std::vector<double> keys = scores;
      for (size_t e = 0; e < keys.size() && !args.bias.empty(); ++e) {
        keys[e] += oracle::value(args.bias, static_cast<int64_t>(e));
      }
      chosen = top(keys, k);
    } else {
      const auto id = static_cast<int64_t>(oracle::value(args.ids, t));
      for (const double e : oracle::row(args.tid2eid, id)) chosen.push_back(static_cast<size_t>(e));
    }
    double sum = 0;
    for (const size_t e : chosen) sum += scores[e];
    for (const size_t e : chosen) {
      answer.experts.push_back(static_cast<double>(e));
      answer.weights.push_back(scores[e] / (args.normalize ? sum : 1) *
                               static_cast<double>(args.route_scale));
    }
  }
  return answer;
}

}  // namespace dsv4
