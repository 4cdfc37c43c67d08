// Sparse multi-query attention over cache rows, with a sink (spec dsv4.md 4.4, 4.5).
//
//   z_j = scale * (q_h . k_j),  m = max_j z_j
//   out_h = sum_j exp(z_j - m) k_j / (sum_j exp(z_j - m) + exp(sink_h - m))
//
// j runs over two lists of row ids that share one softmax: the window, then the compressed entries.
// A negative id is skipped. Each row is both key and value. kOfficial rounds exp(z_j - m) to bf16
// for the value product while the denominator sums the unrounded f32; keys add in list order. A
// query without any valid row gives out = 0 and lse = +inf.

#pragma once

#include "dsv4/ops/op.h"
#include "dsv4/ops/pools.h"
#include "dsv4/tensor/tensor.h"

namespace dsv4 {

struct KvList {
  KvPool pool;
  ConstTensorView rows;  // [t, n] I32 row ids into pool; n may be 0; empty: no such list
};

struct SparseMlaArgs {
  ConstTensorView q;  // [t, h, d] f32|bf16
  KvList window;
  KvList compressed;
  ConstTensorView sink;  // [h] f32, or empty
  float scale = 0.f;
  TensorView out;  // [t, h, d] f32|bf16
  TensorView lse;  // [t, h] f32: ln(sum_j exp(z_j)), without the sink; or empty
};

Table<SparseMlaArgs> sparse_mla_rows();
Cost sparse_mla_cost(const SparseMlaArgs& args);
void sparse_mla(const Context& context, const SparseMlaArgs& args);

}  // namespace dsv4
