// How many rows of weights a token is multiplied with, for the kernels that share K among warps by
// that number (Problem::weight_rows_per_token).
//
// The warps decide the order of additions: each adds up some units of columns, and their sums are
// added in order. So a row has the same bits in every call with the same number.
//
//   Context::need_batch_invariant   a constant, with which K goes to up to four warps
//   else                            the rows of the call
//
// Where a row must have the same bits in any batch, it must have them in any part of a weight, too:
// a rank of several has some rows of what one rank has as a whole (docs/spec/several-gpus.md 2.6).
// The constant fills a GPU less than the true number where a weight has few rows. It is between
// those of a small weight and of a large one.

#pragma once

#include "dsv4/ops/op.h"

namespace dsv4::gemm::cuda {

inline int rows_for_split(const Context& context, int64_t rows) {
  constexpr int kAnyWeight = 2048;
  return context.need_batch_invariant ? kAnyWeight : static_cast<int>(rows);
}

}  // namespace dsv4::gemm::cuda
