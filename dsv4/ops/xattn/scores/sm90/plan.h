// Sizes of a launch of the Hopper kernel, and its instances.

#pragma once

#include <algorithm>

#include "dsv4/ops/xattn/scores/xattn_scores.h"

namespace dsv4 {
class Device;
}

namespace dsv4::xattn_scores_kernel::sm90 {

inline constexpr int64_t kTileRows = 128, kTileColumns = 256;

// CTAs of a cluster: query heads that share a key head. Four load less of K, but leave SMs idle and
// have longer items: on an H200 0.58 ms against 0.52 at 32K and S 16, 8.3 against 8.1 at 128K.
inline int64_t cluster_size(const XattnScoresArgs& args) {
  return args.q.dim(1) / args.k.dim(-2) % 2 == 0 ? 2 : 1;
}

inline int64_t row_tiles(const XattnScoresArgs& args) {  // of a sequence
  return ceil_div(args.sums.dim(2) * (args.block / args.stride), kTileRows);
}
inline int64_t column_tiles(const XattnScoresArgs& args) {
  return ceil_div(args.sums.dim(3) * (args.block / args.stride), kTileColumns);
}
// Key blocks of all column tiles.
inline int64_t partial_stride(const XattnScoresArgs& args) {
  return column_tiles(args) * kTileColumns / (args.block / args.stride);
}

inline int64_t max_ctas(int64_t num_sms, const XattnScoresArgs& args) {
  const int64_t items = args.batch.size() * args.q.dim(1) * row_tiles(args);
  return std::min(items, num_sms / cluster_size(args) * cluster_size(args));
}

// Launches the kernel for kGroups groups of S tokens in a block (instance.cu).
template <int kGroups>
void run_groups(Device& device, const XattnScoresArgs& args);

}  // namespace dsv4::xattn_scores_kernel::sm90
