// How a call of sm90_fp8 is divided among CTAs: heads per CTA, and splits of the list of keys.
//
// Few queries do not fill the GPU, so they are divided: by heads (every CTA reads all keys, from L2
// after the first) or by splits of the list (the CTAs of a cluster combine their partials). The
// plan minimizes a model of the time, with four measured costs per CTA size and the measured number
// of clusters that are resident at a time:
//
//   time = waves * (start + min(1, CTAs / SMs) * crowd + keys * per_key) + [splits > 1] combine
//
// In the invariant plan splits begin at 0, kInvariantSplitKeys, and at that times 2, 4, 8, .. The
// results for a query are the same in any batch, also if topk is larger because other queries have
// longer lists, and those of a head are the same in a call with some of the heads and in CTAs of 8,
// 16 or 32 heads. (CTAs of 64 find their first row max otherwise. And a CTA with a logit of 2^24 or
// more computes all of its heads in f32.) A larger topk costs CTAs: those of empty splits only wait
// for the others.

#pragma once

#include <cstdint>

namespace dsv4::sparse_mla_kernel::sm90_fp8 {

constexpr int kMaxSplits = 8;  // CTAs of a cluster
// Partials of a query replace its q in shared memory. With 64 heads they fit for 2, 4 and 8 splits;
// 6 and 7 splits of 32 heads would need more shared memory than 2 .. 5 or 8.
constexpr bool splits_fit(int heads, int splits) {
  if (heads < 32) return true;
  return (splits & (splits - 1)) == 0 || (heads == 32 && splits < 6);
}
constexpr int kInvariantSplitKeys = 320;
constexpr int kMostInvariantKeys = kInvariantSplitKeys << (kMaxSplits - 1);
// A non-empty window occupies at least this many list positions: a pair of key tiles. A longer
// window before a compressed list is rejected.
constexpr int kInvariantWindow = 128;

struct Plan {
  int heads = 64;      // of a CTA: 8, 16, 32 or 64
  int split_keys = 0;  // list positions of a split (invariant: of the first), a multiple of 64
  int num_splits = 1;
  // Invalid indices after the last valid one of either list change no bit of the result. To that
  // end the compressed list starts at a fixed position, whatever the length of the window, and the
  // CTAs find out whether only one split has keys; the query is then stored as if it had no splits.
  bool invariant = false;
};

// topk: positions of the longest list, window and compressed together.
Plan plan_call(int64_t queries, int heads, int topk, int num_sms);
Plan plan_invariant(int64_t queries, int heads, int topk, int num_sms);

}  // namespace dsv4::sparse_mla_kernel::sm90_fp8
