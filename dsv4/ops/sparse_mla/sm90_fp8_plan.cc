#include "dsv4/ops/sparse_mla/sm90_fp8_plan.h"

#include <algorithm>
#include <iterator>

#include "dsv4/base/bits.h"

namespace dsv4::sm90_fp8 {
namespace {

// Microseconds, fitted to a sweep on an H100 (docs/kernels/sparse_mla.md, "Plan"): a block of so
// many heads starts and ends in `start`, and `crowd` more when the GPU is full of them, takes
// `per_key` for a key, and merging its part takes `merge`.
struct BlockCost {
  int heads;
  double start, crowd, per_key, merge;
};
constexpr BlockCost kBlockCosts[] = {{8, 4.23, 1.36, 0.0238, 0.93},
                                     {16, 4.31, 2.03, 0.0240, 1.05},
                                     {32, 5.47, 2.05, 0.0264, 1.26},
                                     {64, 5.57, 3.51, 0.0351, 1.82}};

// Clusters of 1, 2, .. blocks that find room on 132 processors, cudaOccupancyMaxActiveClusters():
// those of three and more do not use every processor.
constexpr int kClustersAtOnce[] = {132, 66, 39, 30, 22, 17, 15, 15}, kProcessors = 132;
static_assert(std::size(kClustersAtOnce) == kMaxChunks);

constexpr int kTileKeys = 64;

Plan cut(int heads, int slots, int64_t chunks) {
  const int64_t chunk = std::max<int64_t>(
      kTileKeys, align_up(ceil_div(std::max(slots, 1), chunks), int64_t{kTileKeys}));
  return {.heads = heads,
          .chunk = static_cast<int>(chunk),
          .chunks = static_cast<int>(std::max<int64_t>(1, ceil_div(slots, chunk)))};
}

double microseconds(const BlockCost& cost, const Plan& plan, int64_t queries, int heads, int slots,
                    int processors) {
  const int64_t clusters = queries * ceil_div(heads, plan.heads);
  const int64_t at_once = std::max(1, kClustersAtOnce[plan.chunks - 1] * processors / kProcessors);
  const auto waves = static_cast<double>(ceil_div(clusters, at_once));
  const double full = std::min(1.0, static_cast<double>(clusters * plan.chunks) / processors);
  const double block = cost.start + full * cost.crowd + std::min(plan.chunk, slots) * cost.per_key;
  return waves * block + (plan.chunks > 1 ? cost.merge : 0);
}

}  // namespace

Plan plan_call(int64_t queries, int heads, int slots, int processors) {
  Plan best;
  double least = 0;
  for (const BlockCost& cost : kBlockCosts) {
    if (cost.heads > 8 && cost.heads / 2 >= heads) continue;  // half of it would do
    for (int chunks = 1; chunks <= kMaxChunks; ++chunks) {
      const Plan plan = cut(cost.heads, slots, chunks);
      if (!parts_fit(plan.heads, plan.chunks)) continue;
      const double time = microseconds(cost, plan, queries, heads, slots, processors);
      if (best.chunk != 0 && time >= least) continue;
      best = plan, least = time;
    }
  }
  return best;
}

Plan plan_invariant(int heads, int slots) {
  const int size = heads <= 8 ? 8 : heads <= 16 ? 16 : heads <= 32 ? 32 : 64;
  auto chunks = static_cast<int>(std::max<int64_t>(1, ceil_div(slots, kInvariantChunk)));
  while (!parts_fit(size, chunks)) ++chunks;  // the last ones are empty
  return {.heads = size, .chunk = kInvariantChunk, .chunks = chunks, .invariant = true};
}

}  // namespace dsv4::sm90_fp8
