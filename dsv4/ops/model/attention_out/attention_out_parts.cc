#include "dsv4/ops/model/attention_out/attention_out.h"
#include "dsv4/ops/parts/linear/projection.h"

namespace dsv4::attention_out_kernel::parts {

void run(const Context& context, const AttentionOutArgs& args) {
  const Scratch::Scope scope(workspace(context));
  const int64_t t = args.o.dim(0);
  const TensorView u = workspace(context).take(activation_dtype(context), {t, args.wo_a.n});
  linear(context, {.x = args.o.reshape({t, args.o.dim(1) * args.o.dim(2)}),
                   .weight = args.wo_a,
                   .out = u,
                   .groups = args.groups});
  Projection(context, u).into(args.wo_b, args.y);
}

}  // namespace dsv4::attention_out_kernel::parts
