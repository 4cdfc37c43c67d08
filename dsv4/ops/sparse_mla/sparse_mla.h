// Sparse multi-query attention over cache rows, with a sink (spec dsv4.md 4.4, 4.5; the contract of
// paged decode and of prefill is that of spec attention-kernels.md 1.2).
//
//   z_j = scale * (q_h . k_j),  m = max_j z_j
//   out_h = sum_j exp(z_j - m) v_j / (sum_j exp(z_j - m) + exp(sink_h - m))
//
// j runs over two lists of row ids that share one softmax: the window, then the compressed entries.
// A negative id is skipped. A row of d values is the key; its first d_v are the value. kOfficial
// rounds exp(z_j - m) for the value product, to bf16 (Hopper's FP8 rows: f16), while the
// denominator sums the unrounded f32; keys add in list order. A query without any valid row gives
// out = 0, lse = +inf and max_logits = -inf, whatever the sink; a sink of +inf gives out = 0, one
// of -inf changes nothing.
//
// Queries come as [t, ...]: t requests of one query, or as [b, s_q, ...]: s_q queries of each of b
// requests. The last axis of every view has stride 1, all others have any stride.
//
// An id that is not below its pool's rows is an error on the CPU; device rows cannot throw for it
// and skip it.

#pragma once

#include "dsv4/ops/op.h"
#include "dsv4/ops/pools.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct KvList {
  KvPool pool;
  ConstTensorView rows;  // [t, n] | [b, s_q, n] I32 row ids into pool; n may be 0; empty: no list
  // [b] I32, or empty: the queries of request i look at their first lengths[i] slots only; what
  // stands behind is never dereferenced, whatever it is. Below 0 counts as 0, above n as n.
  ConstTensorView lengths{};
};

struct SparseMlaArgs {
  ConstTensorView q;  // [t, h, d] | [b, s_q, h, d] f32|bf16
  KvList window;
  KvList compressed;
  ConstTensorView sink;  // [h] f32 natural log, +-inf are legal; or empty
  float scale = 0.f;
  // false: out_h = sum_j exp(z_j - m) v_j with m = max_logits, and the sink is not looked at: parts
  // of a list that somebody merges.
  bool normalized = true;
  TensorView out;  // [t, h, d_v] | [b, s_q, h, d_v] f32|bf16, 1 <= d_v <= d
  TensorView lse;  // [t, h] | [b, h, s_q] f32: ln(sum_j exp(z_j)), without the sink; or empty
  TensorView max_logits;  // as lse: m; or empty
};

extern const Op<SparseMlaArgs> sparse_mla;

}  // namespace dsv4
