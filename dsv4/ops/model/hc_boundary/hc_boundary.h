// From one block of the network to the next: the output y of the block before goes into the
// residual streams, and the normalized input x of the next block comes out of them
// (docs/spec/dsv4.md 8; ops/parts/mhc/mhc.h and ops/parts/norm/norm.h have the formulas).
//
//   X'              = hc_post(X, y; post, comb of the boundary before y's block)   only with y
//   x, post', comb' = hc_pre(X')
//   x'              = rms_norm(x)
//
// Each of X', x and x' is stored, and so rounded, once.

#pragma once

#include "dsv4/device/peer_words.h"
#include "dsv4/ops/op.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

// The weights of one boundary, or of the head: fn [m, m*d], base [m], scale [1].
struct HyperWeights {
  ConstTensorView fn;     // [m*(2+m), m*d] f32
  ConstTensorView base;   // [m*(2+m)] f32
  ConstTensorView scale;  // [3] f32
};

// Where the columns of a view are that each rank has in memory of its own: columns from end[r - 1]
// to end[r] at a distance from the address here. Empty: all are here.
struct ColumnHomes {
  static constexpr int kMost = Mirrors::kMost + 1;

  int32_t count = 0;             // ranks
  int32_t end[kMost] = {};       // columns
  int64_t distance[kMost] = {};  // bytes; 0 of the rank itself

  bool empty() const { return count == 0; }
};

struct HcBoundaryArgs {
  ConstTensorView y;  // [t, d] f32|bf16, rounded as hc_post does; rank 0: no block before
  // Where ranks compute columns of y, the call reads them where they are, or exchanges them. An
  // implementation that cannot refuses it.
  ColumnHomes y_homes{};
  PeerWords y_words{};
  ConstTensorView y_post;  // [t, m] f32, with y: `post` of the boundary before its block
  ConstTensorView y_comb;  // [t, m, m] f32, with y: `comb` of that boundary
  HyperWeights hc;
  ConstTensorView norm;  // [d] f32|bf16
  float norm_eps = 1e-6f, hc_eps = 1e-6f;
  int sinkhorn_iters = 20;
  TensorView streams;  // X [t, m, d] f32|bf16, updated in place if there is a y
  TensorView x;        // [t, d] f32|bf16
  TensorView post;     // [t, m] f32, not the memory of y_post
  TensorView comb;     // [t, m, m] f32, not the memory of y_comb
  // Q8 of x as quantize_q8 makes it, in groups of 128, for products that take it; rank 0: not
  // wanted.
  TensorView codes{};   // [t, d] E4M3
  TensorView scales{};  // [t, ceil(d / 128)] E8M0
};

extern const Op<HcBoundaryArgs> hc_boundary;

// For implementations that take no columns of y from other ranks.
const char* reject_columns_of_others(const Context& context, const HcBoundaryArgs& args);

// Blocks take the boundary before them as an argument, so that an implementation may compute x in
// the kernel that reads it. Results are those of hc_boundary and then the block. No streams: none.
inline bool is_given(const HcBoundaryArgs& boundary) {
  return boundary.streams.rank > 0;
}
// x: what the block takes, which must be the boundary's.
void check_boundary_of(const ConstTensorView& x, const HcBoundaryArgs& boundary);

}  // namespace dsv4
