#include "dsv4/ops/gemm/sm90/kbit_rows_plan.h"

#include <algorithm>

#include "dsv4/device/sm90/limits.h"

namespace dsv4::gemm::kbit_rows {
namespace {

// Rates of an SM of an H200, per ns.
constexpr double kMemoryBytes = 33, kXBytes = 40, kDecodedWeights = 100;
constexpr double kExchange = 900;  // ns of a round of a cluster

// Rows of a warpgroup, rounds and stages, so that clusters have equal work. False: nothing fits.
bool fit(const Shape& s, int num_sms, Plan& p) {
  const int64_t tiles = ceil_div(s.tokens, int64_t{p.cells});
  const int64_t most = std::max<int64_t>(1, num_sms / p.ranks / tiles);
  const int64_t groups = ceil_div(s.n, int64_t{kGroupRows} * p.row_groups);
  p.rounds = static_cast<int>(ceil_div(groups, most));
  const int64_t rows = ceil_div(s.n, most * p.rounds * p.row_groups);
  p.rows = static_cast<int>(std::min<int64_t>(kGroupRows, align_up(rows, 8)));
  p.clusters = static_cast<int>(ceil_div(s.n, int64_t{p.rounds} * p.row_groups * p.rows));
  for (p.stages = kMaxStages; p.stages >= 2; --p.stages)
    if (Layout(s.bits, p).bytes <= sm90::kMaxSmem) return true;
  return false;
}

// Copies of short pieces of rows are slower.
double copy_rate(int bytes) {
  return bytes < 64 ? 0.6 : bytes < 96 ? 0.8 : bytes < 128 ? 0.95 : 1;
}

double cost(const Shape& s, const Plan& p) {
  const double rows = double{1} * p.rounds * p.row_groups * p.rows;
  const double columns = static_cast<double>(s.k) / p.ranks;
  const double memory = rows * columns * (s.bits + 0.25) / 8 /
                        (kMemoryBytes * copy_rate(p.stage_units * 16 * s.bits));
  const int shares = p.ranks * p.k_groups();
  const double share = ceil_div(p.all_stages(), shares) * p.stage_units;
  const double decode = p.rounds * kWarpgroups * kGroupRows * share * kUnit / kDecodedWeights;
  const double x = static_cast<double>(p.cells) * columns * 2 / kXBytes;
  return std::max(memory, decode) + x + (p.ranks > 1 ? kExchange * p.rounds : 0);
}

}  // namespace

Plan make_plan(const Shape& s, int num_sms) {
  Plan best;
  double least = 0;
  int first = 1;
  while (first < std::min<int64_t>(s.tokens, kMaxCells)) first *= 2;
  for (int cells = first; cells >= 1 && best.cells == 0; cells /= 2) {
    for (int ranks = 1; ranks <= kMaxRanks; ranks *= 2) {
      Plan p{.cells = cells,
             .ranks = ranks,
             .row_groups = std::min(ranks, kWarpgroups),
             .units = static_cast<int>(ceil_div(s.k, int64_t{kUnit}))};
      for (p.stage_units = 1; p.stage_units <= kMaxStageUnits; p.stage_units += 2) {
        if (!fit(s, num_sms, p)) continue;
        if (const double ns = cost(s, p); best.cells == 0 || ns < least) best = p, least = ns;
      }
    }
  }
  return best;
}

}  // namespace dsv4::gemm::kbit_rows
