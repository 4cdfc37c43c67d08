// The oracles of hc_post, hc_pre and rms_norm, one after the other: X' and x are rounded to their
// dtypes in between (docs/spec/dsv4.md 13.1).

#include "dsv4/ops/model/hc_boundary/hc_boundary_case.h"

#include "dsv4/ops/oracle.h"
#include "dsv4/ops/parts/norm/norm_case.h"

namespace dsv4 {

HcBoundaryWant hc_boundary_oracle(const HcBoundaryArgs& args) {
  const int64_t t = args.streams.dim(0), m = args.streams.dim(1), d = args.streams.dim(2);
  HcBoundaryWant want;
  if (args.y.rank > 0) {
    want.streams = hc_post_oracle(
        {.y = args.y, .post = args.y_post, .comb = args.y_comb, .streams = args.streams});
  } else {
    for (int64_t i = 0; i < args.streams.numel(); ++i)
      want.streams.push_back(oracle::value(args.streams, i));
  }
  const Buffer streams = oracle::stored(args.streams.dtype, {t, m, d}, want.streams);
  const HcPreWant pre = hc_pre_oracle({.streams = streams,
                                       .fn = args.hc.fn,
                                       .base = args.hc.base,
                                       .scale = args.hc.scale,
                                       .norm_eps = args.norm_eps,
                                       .hc_eps = args.hc_eps,
                                       .sinkhorn_iters = args.sinkhorn_iters,
                                       .out = args.x});
  want.post = pre.post, want.comb = pre.comb;
  const Buffer x = oracle::stored(args.x.dtype, {t, d}, pre.out);
  want.x = rms_norm_oracle({.x = x, .weight = args.norm, .out = args.x, .eps = args.norm_eps});
  return want;
}

}  // namespace dsv4
