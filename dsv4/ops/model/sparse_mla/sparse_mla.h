// Sparse multi-query attention over cache rows, with a sink (docs/spec/dsv4.md 4.4, 4.5; the
// contract of paged decode and of prefill is that of docs/spec/attention-kernels.md 1.2).
//
//   z_j = scale * (q_h . k_j),  m = max_j z_j
//   out_h = sum_j exp(z_j - m) v_j / (sum_j exp(z_j - m) + exp(sink_h - m))
//
// j runs over two lists of indices that share one softmax: the window, then the compressed entries.
// A negative index is skipped. A cache row of d values is the key; its first d_v are the value.
// kOfficial rounds exp(z_j - m) for the PV product, to bf16 (sm90_fp8: f16), while the denominator
// sums the unrounded f32; keys add in list order. A query without any valid key gives out = 0, lse
// = +inf and max_logits = -inf, whatever the sink; a sink of +inf gives out = 0, one of -inf
// changes nothing.
//
// Each of b requests has s_q queries (decode: usually 1; prefill: b tokens of one query each). The
// last axis of every view has stride 1, all others have any stride.
//
// An index that is not below its pool's rows is an error on the CPU; device implementations cannot
// throw for it and skip it.

#pragma once

#include "dsv4/ops/op.h"
#include "dsv4/ops/pools.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct KvList {
  KvPool pool;
  ConstTensorView indices;  // [b, s_q, topk] I32 rows of pool; topk may be 0; empty: no list
  // [b] I32, or empty: the queries of request i use their first topk_length[i] indices only; later
  // ones are never dereferenced, whatever their value. Below 0 counts as 0, above topk as topk.
  ConstTensorView topk_length{};
  // Indices and lengths were complete before the previous kernel of the stream was launched, so a
  // kernel that is launched early (LaunchShape::pdl) may read them before it waits.
  bool early = false;

  // Indices of a query, valid or not; 0 without a list.
  int64_t topk() const { return indices.rank == 0 ? 0 : indices.dim(-1); }
};

// Rotates the output back (docs/spec/dsv4.md 4.6; ops/parts/rope/rope.h): out is rounded by its
// store, rotated by -phi and stored again.
struct InverseRope {
  ConstTensorView positions;  // [b, s_q] I32, contiguous; rank 0: no rotation
  ConstTensorView freqs;      // [num_pairs] f32; dims d - 2 * num_pairs .. d - 1 rotate
  bool early = false;         // both, as KvList::early
};

struct SparseMlaArgs {
  ConstTensorView q;  // [b, s_q, h, d] f32|bf16
  KvList window;
  KvList compressed;
  ConstTensorView sink;  // [h] f32 natural log, +-inf are legal; or empty
  float scale = 0.f;
  // false: out_h = sum_j exp(z_j - m) v_j with m = max_logits, and the sink is not used: partials
  // of a list, for the caller to combine.
  bool normalized = true;
  InverseRope inverse_rope{};  // with normalized, and d_v = d
  TensorView out;              // [b, s_q, h, d_v] f32|bf16, 1 <= d_v <= d
  TensorView lse;              // [b, h, s_q] f32: ln(sum_j exp(z_j)), without the sink; or empty
  TensorView max_logits;       // [b, h, s_q] f32: m; or empty
};

extern const Op<SparseMlaArgs> sparse_mla;

}  // namespace dsv4
