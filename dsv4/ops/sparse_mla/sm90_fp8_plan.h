// How a call of sm90_fp8.cu is cut into blocks: heads of a block, and chunks of the list.
//
// Few queries do not fill the GPU, so they are cut: by heads (every block reads all rows, from L2
// after the first) or by chunks of the list (blocks of a cluster give each other their parts).
// The choice is the least of a model of four measured numbers per size of block, and of how many
// clusters find room at a time:
//
//   time = waves * (start + min(1, blocks / processors) * crowd + keys * per_key) + [chunks > 1]
//   merge
//
// The other plan never looks at the number of queries: the smallest block that has all heads (64 at
// most), chunks of kInvariantChunk. What it computes for a query is the same in any batch, also if
// its lists have room for those of others. Room for long lists costs it blocks: those of empty
// chunks wait for the others.

#pragma once

#include <cstdint>

namespace dsv4::sm90_fp8 {

constexpr int kMaxChunks = 8;  // blocks of a cluster
// Blocks hold the parts of a query in the place of its q. Of 64 heads that has room for 2, 4 and 8,
// and for 6 and 7 of 32 it would have to be larger than for others.
constexpr bool parts_fit(int heads, int chunks) {
  if (heads < 32) return true;
  return (chunks & (chunks - 1)) == 0 || (heads == 32 && chunks < 6);
}
constexpr int kInvariantChunk = 2048;
// Positions that a window takes at least, if there is one: a pair of tiles. A longer one in front
// of a second list is rejected, whatever the model's is.
constexpr int kInvariantWindow = 128;

struct Plan {
  int heads = 64;  // of a block: 8, 16, 32 or 64
  int chunk = 0;   // list positions of a block, a multiple of 64
  int chunks = 1;
  // Ids that name no row, behind the last one of either list, change no bit. So the second list
  // begins at a position of its own, however long the window's is, and a query with keys in one
  // chunk only leaves as if it had not been cut, about which blocks have to tell each other.
  bool invariant = false;
};

// slots: of the longest list, both segments together.
Plan plan_call(int64_t queries, int heads, int slots, int processors);
Plan plan_invariant(int heads, int slots);

}  // namespace dsv4::sm90_fp8
