#include "dsv4/ops/model/hc_boundary/hc_boundary.h"
#include "dsv4/ops/parts/mhc/mhc.h"
#include "dsv4/ops/parts/norm/norm.h"

namespace dsv4::hc_boundary_kernel::parts {

void run(const Context& context, const HcBoundaryArgs& args) {
  if (args.y.rank > 0) {
    hc_post(context,
            {.y = args.y, .post = args.y_post, .comb = args.y_comb, .streams = args.streams});
  }
  hc_pre(context, {.streams = args.streams,
                   .fn = args.hc.fn,
                   .base = args.hc.base,
                   .scale = args.hc.scale,
                   .norm_eps = args.norm_eps,
                   .hc_eps = args.hc_eps,
                   .sinkhorn_iters = args.sinkhorn_iters,
                   .out = args.x,
                   .post = args.post,
                   .comb = args.comb});
  rms_norm(context, {.x = args.x,
                     .weight = args.norm,
                     .out = args.x,
                     .eps = args.norm_eps,
                     .codes = args.codes,
                     .scales = args.scales});
}

}  // namespace dsv4::hc_boundary_kernel::parts
