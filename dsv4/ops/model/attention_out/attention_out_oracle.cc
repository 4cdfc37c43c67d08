// The oracles of the two products, with u stored in between.

#include "dsv4/ops/model/attention_out/attention_out_case.h"

#include "dsv4/ops/oracle.h"
#include "dsv4/ops/parts/linear/linear_case.h"

namespace dsv4 {

std::vector<double> attention_out_oracle(const Context& context, const AttentionOutArgs& args) {
  const int64_t t = args.o.dim(0);
  const ConstTensorView o = args.o.reshape({t, args.o.dim(1) * args.o.dim(2)});
  const Buffer u =
      oracle::stored(activation_dtype(context), {t, args.wo_a.n},
                     linear_oracle({.x = o, .weight = args.wo_a, .groups = args.groups}));
  return projection_oracle(context, u, args.wo_b);
}

}  // namespace dsv4
