// The one form that the rows of sparse_mla.h and its oracle work on: every query belongs to a
// request and has a slot in it.

#pragma once

#include "dsv4/ops/sparse_mla/sparse_mla.h"

namespace dsv4 {

// The same arguments as q [b, s_q, h, d], rows [b, s_q, n], out [b, s_q, h, d_v], lse and
// max_logits [b, h, s_q]; t requests of one query get s_q = 1. Empty views stay empty.
SparseMlaArgs by_request(const SparseMlaArgs& args);

// Listed slots of a query; 0 without a list.
inline int64_t listed(const KvList& list) {
  return list.rows.rank == 0 ? 0 : list.rows.dim(-1);
}

}  // namespace dsv4
