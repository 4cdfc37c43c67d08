#include "dsv4/ops/sparse_mla/sm90_fp8_plan.h"

#include <algorithm>

#include "dsv4/base/bits.h"

namespace dsv4::sm90_fp8 {
namespace {

// Microseconds, fitted by hand to a sweep on an H100 (docs/kernels/sparse_mla.md, "Plan"): a block
// of so many heads starts and ends in `start`, and `crowd` more when the GPU is full of them, takes
// `per_key` for a key, and merging its part takes `merge`.
struct BlockCost {
  int heads;
  double start, crowd, per_key, merge;
};
constexpr BlockCost kBlockCosts[] = {{8, 3.7, 0.8, 0.0245, 2.1},
                                     {16, 4.4, 0.8, 0.0265, 2.0},
                                     {32, 5.6, 1.8, 0.0283, 2.5},
                                     {64, 5.5, 6.5, 0.0341, 4.2}};

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
  const int64_t blocks = queries * ceil_div(heads, plan.heads) * plan.chunks;
  // Clusters of three and more do not use every processor: 117, 120, 110, 102, 105 and 120 of 132.
  const int64_t places = plan.chunks <= 2 ? processors : processors * 3 / 4;
  const auto waves = static_cast<double>(ceil_div(blocks, std::max<int64_t>(1, places)));
  const double full = std::min(1.0, static_cast<double>(blocks) / processors);
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
      const double time = microseconds(cost, plan, queries, heads, slots, processors);
      if (best.chunk != 0 && time >= least) continue;
      best = plan, least = time;
    }
  }
  return best;
}

Plan plan_invariant(int heads, int slots) {
  const int size = heads <= 8 ? 8 : heads <= 16 ? 16 : heads <= 32 ? 32 : 64;
  return {.heads = size,
          .chunk = kInvariantChunk,
          .chunks = static_cast<int>(std::max<int64_t>(1, ceil_div(slots, kInvariantChunk))),
          .invariant = true};
}

}  // namespace dsv4::sm90_fp8
