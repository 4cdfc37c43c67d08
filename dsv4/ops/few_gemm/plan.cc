#include "dsv4/ops/few_gemm/plan.h"

#include <algorithm>

namespace dsv4::few_gemm {
namespace {

constexpr int kMinStages = 4;
// Shared memory of a CTA when three, two or one of them fit on an SM (228 KB, 1 KB reserved each).
constexpr int kShared[] = {75 << 10, 113 << 10, 227 << 10};
// CTAs of a GPU of 132 SMs that stream at full speed: two per SM, less what clusters cannot fill.
constexpr int kEnoughCtas = 200;
constexpr int kRankXBytes = 2048;  // of a token's activations in one rank, preferred

int slabs_of(const Shape& shape) {
  return static_cast<int>(ceil_div(shape.k, int64_t{slab_columns(shape.format)}));
}

int ranks_of(const Shape& shape) {
  const int slabs = slabs_of(shape), x_bytes = x_boxes(shape.format) * kSlabBytes;
  int ranks = 1;
  while (ranks < kMaxRanks && 2 * ranks <= slabs &&
         (shape.tiles * ranks < kEnoughCtas || ceil_div(slabs, ranks) * x_bytes > kRankXBytes))
    ranks *= 2;
  return ranks;
}

}  // namespace

int tile_tokens(int64_t tokens) {
  return tokens <= 8 ? 8 : tokens <= 16 ? 16 : kMaxTokens;
}

const char* reject(const Shape& shape) {
  const auto slabs = static_cast<int>(ceil_div(slabs_of(shape), ranks_of(shape)));
  if (slabs > kMaxRankSlabs || slabs * x_boxes(shape.format) * kSlabBytes * kMaxTokens > kMaxXBytes)
    return "rows are too long";
  return nullptr;
}

Split make_split(const Shape& shape, int num_sms) {
  Split split{.ranks = ranks_of(shape),
              .slabs = slabs_of(shape),
              .tiles = static_cast<int>(shape.tiles),
              .tiles_per_group = static_cast<int>(shape.tiles_per_group)};
  // As few rounds as two CTAs per SM allow, and then as few clusters as these rounds need.
  const auto unit = static_cast<int>(shape.tiles_of_cluster);
  const int resident = std::max(1, 2 * num_sms / split.ranks);
  int units =
      static_cast<int>(std::max<int64_t>(1, ceil_div(ceil_div(split.tiles, unit), resident)));
  // A group has whole clusters.
  while (units > 1 && split.tiles_per_group < split.tiles &&
         split.tiles_per_group % (units * unit) != 0)
    --units;
  split.tiles_per_cluster = units * unit;
  const int tokens = tile_tokens(shape.tokens);
  for (const int limit : kShared) {
    for (split.stages = kMaxStages; split.stages >= kMinStages; --split.stages)
      if (Layout(shape.format, tokens, split).bytes <= limit) return split;
  }
  split.stages = kMinStages;
  return split;
}

}  // namespace dsv4::few_gemm
