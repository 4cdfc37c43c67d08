#include "dsv4/ops/model/sparse_mla/sparse_mla.h"
#include "dsv4/ops/parts/rope/rope.h"

namespace dsv4::sparse_mla_kernel::parts {
namespace {

// [b, n, h, d] with n = 1, or one request of n queries, without the axis of one element.
TensorView squeezed(const TensorView& view, size_t axis) {
  TensorView out = view;
  out.rank = 3;
  for (size_t i = axis; i < 3; ++i) {
    out.shape[i] = view.shape[i + 1];
    out.stride[i] = view.stride[i + 1];
  }
  return out;
}

}  // namespace

const char* reject(const Context&, const SparseMlaArgs& args) {
  return args.inverse_rope.positions.rank > 0 ? nullptr : "no inverse RoPE: one call";
}

// One call of rope for requests of one query; one for each request otherwise, because requests may
// be at any distance.
void run(const Context& context, const SparseMlaArgs& args) {
  SparseMlaArgs attention = args;
  attention.inverse_rope = {};
  sparse_mla(context, attention);
  const InverseRope& inverse = args.inverse_rope;
  const int64_t b = args.out.dim(0), s_q = args.out.dim(1);
  const auto rotate = [&](const TensorView& x, const ConstTensorView& positions) {
    rope(context, {.x = x, .positions = positions, .freqs = inverse.freqs, .inverse = true});
  };
  if (s_q == 1) return rotate(squeezed(args.out, 1), inverse.positions.reshape({b}));
  const ConstTensorView positions = inverse.positions.reshape({b * s_q});
  for (int64_t i = 0; i < b; ++i) {
    rotate(squeezed(args.out.slice(0, i, i + 1), 0), positions.slice(0, i * s_q, (i + 1) * s_q));
  }
}

}  // namespace dsv4::sparse_mla_kernel::parts
