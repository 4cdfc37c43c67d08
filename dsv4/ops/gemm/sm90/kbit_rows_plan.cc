#include "dsv4/ops/gemm/sm90/kbit_rows_plan.h"

#include <algorithm>
#include <cstdlib>

#include "dsv4/device/sm90/limits.h"

namespace dsv4::gemm::kbit_rows {
namespace {

// Rates of an SM of an H200, per ns.
constexpr double kMemoryBytes = 33, kXBytes = 40, kDecodedWeights = 80;
constexpr double kBytesInFlight = 24 << 10;  // of copies, for that rate
constexpr double kExchange = 900;            // ns of a round of a cluster
constexpr double kStage = 140;               // ns of a stage of a share beside its units
constexpr double kAlone = 2500;              // ns of a start that no other kernel hides
constexpr int kSharedSm = 113 << 10;         // bytes of shared memory of a CTA of two

// Rows of a warpgroup, rounds and stages, so that clusters have equal work. False: nothing fits.
bool fit(const Shape& s, int num_sms, int shared, Plan& p) {
  const int64_t tiles = ceil_div(s.tokens, int64_t{p.cells});
  const int64_t most = std::max<int64_t>(1, num_sms / p.ranks / tiles);
  const int64_t groups = ceil_div(s.n, int64_t{kGroupRows} * p.row_groups);
  p.rounds = static_cast<int>(ceil_div(groups, most));
  if (const char* r = std::getenv("KBIT_ROUNDS")) p.rounds *= std::atoi(r);
  constexpr int kFewestRows = 8;
  const int64_t fewest = int64_t{p.rounds} * p.row_groups * kFewestRows;
  p.clusters = static_cast<int>(std::min(most, ceil_div(s.n, fewest)));
  divide_rows(s.n, p);
  for (p.stages = std::getenv("KBIT_STAGES") ? std::atoi(std::getenv("KBIT_STAGES")) : kMaxStages;
       p.stages >= 2; --p.stages)
    if (Layout(s.bits, p).bytes <= shared) return true;
  return false;
}

// Slower decoding where lanes that load a stage share banks.
double conflicts(const Shape& s, const Plan& p) {
  return p.stage_units % 2 == 1 ? 1 : s.bits == 4 ? 1.1 : 1.35;
}

// Copies of short pieces of rows are slower.
double copy_rate(int bytes) {
  return bytes < 64 ? 0.6 : bytes < 96 ? 0.8 : bytes < 128 ? 0.95 : 1;
}

double cost(const Shape& s, const Plan& p) {
  const Layout layout(s.bits, p);
  const double rows = double{1} * p.rounds * p.row_groups * p.rows;
  const double columns = static_cast<double>(s.k) / p.ranks;
  const double in_flight = (p.stages - 1.) * kWarpgroups * layout.stage_bytes;
  const double memory = rows * columns * (s.bits + 0.25) / 8 /
                        (kMemoryBytes * copy_rate(p.stage_units * 16 * s.bits) *
                         std::min(1., in_flight / kBytesInFlight));
  const double share = ceil_div(p.row_stages, kShares) * p.stage_units;
  // Warps of 16 rows work at the same time, on 64 rows of one unit or on several units.
  const int decoded = kGroupRows / p.warps_of_rows();
  const double decode =
      p.rounds * (kWarpgroups * decoded * share * kUnit / kDecodedWeights * conflicts(s, p) +
                  kStage * share / p.stage_units);
  const double x = static_cast<double>(p.cells) * columns * 2 / kXBytes;
  const bool alone = ctas_of_sm(s.bits, p.cells) == 1 || layout.bytes > kSharedSm;
  return std::max(memory, decode) + x + (p.ranks > 1 ? kExchange * p.rounds : 0) +
         (alone ? kAlone : 0);
}

}  // namespace

void divide_rows(int64_t n, Plan& plan) {
  const int64_t groups = int64_t{plan.rounds} * plan.clusters * plan.row_groups;
  plan.rows = static_cast<int>(ceil_div(n, groups));
  plan.even_rows = static_cast<int>(n / groups);
  plan.longer = static_cast<int>(n % groups);
}

// KBIT_NAME of the environment, or `other`.
static int setting(const char* name, int other) {
  const char* const value = std::getenv(name);
  return value == nullptr ? other : std::atoi(value);
}

Plan make_plan(const Shape& s, int num_sms) {
  num_sms = setting("KBIT_SMS", num_sms);
  const int only_ranks = setting("KBIT_RANKS", 0), only_units = setting("KBIT_UNITS", 0);
  const int only_shared = setting("KBIT_SHARED", 0);
  Plan best;
  double least = 0;
  int first = 1;
  first = setting("KBIT_CELLS", first);
  while (first < std::min<int64_t>(s.tokens, kMaxCells)) first *= 2;
  for (int cells = first; cells >= 1 && best.cells == 0; cells /= 2) {
    for (int ranks = 1; ranks <= kMaxRanks; ranks *= 2) {
      if (only_ranks != 0 && ranks != only_ranks) continue;
      Plan p{.cells = cells,
             .ranks = ranks,
             .row_groups = std::min(ranks, kWarpgroups),
             .units = static_cast<int>(ceil_div(s.k, int64_t{kUnit}))};
      for (p.stage_units = 1; p.stage_units <= 16; ++p.stage_units) {
        if (only_units != 0 && p.stage_units != only_units) continue;
        p.row_stages = static_cast<int>(ceil_div(p.units, p.stage_units));
        for (const int shared : {kSharedSm, sm90::kMaxSmem}) {
          if (only_shared != 0 && (shared >> 10) != only_shared) continue;
          if (!fit(s, num_sms, shared, p)) continue;
          if (const double ns = cost(s, p); best.cells == 0 || ns < least) best = p, least = ns;
        }
      }
    }
  }
  return best;
}

}  // namespace dsv4::gemm::kbit_rows
