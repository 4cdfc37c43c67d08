#include "dsv4/ops/model/attention_in/queries.h"

#include "dsv4/ops/parts/linear/projection.h"
#include "dsv4/ops/parts/norm/norm.h"
#include "dsv4/ops/parts/quant/quant.h"
#include "dsv4/ops/parts/rope/rope.h"
#if DSV4_CUDA
#endif

namespace dsv4 {
namespace {

// c -> [t, h, d], normalized per head and rotated.
void queries(const Context& context, const AttentionInArgs& args, Projection& c) {
  const TensorView& q = args.q;
  const int64_t t = q.dim(0), h = q.dim(1), d = q.dim(2);
  if (h == 0) return;  // of a rank of several
  c.into(args.weights.wq_b, q.reshape({t, h * d}));
#if DSV4_CUDA
  if (context.device != nullptr && finish_heads_cuda_reject(context, args) == nullptr)
    return finish_heads_cuda(context, args);
#endif
  const TensorView heads = q.reshape({t * h, d});
  head_norm(context, {.x = heads, .out = heads, .eps = args.norm_eps});
  rope(context, {.x = q, .positions = args.positions, .freqs = args.freqs});
}

// c -> [n, index_heads, index_dim]; under official numerics on the Hadamard-transformed 4-bit grid
// that the keys are stored on.
void index_queries(const Context& context, const AttentionInArgs& args, const Projection& c) {
  const TensorView& q = args.index_q;
  const int64_t n = q.dim(0), h = q.dim(1), d = q.dim(2);
  if (n == 0) return;  // on a rank of several
  const int64_t first = args.index_first, last = first + n;
  c.rows(first, last).into(args.weights.indexer.wq_b, q.reshape({n, h * d}));
  const ConstTensorView positions = args.positions.slice(0, first, last);
  rope(context, {.x = q, .positions = positions, .freqs = args.freqs});
  if (context.numerics != Numerics::kOfficial) return;
  const TensorView heads = q.reshape({n * h, d});
  hadamard(context, {.x = heads, .out = heads});
  fake_quant(
      context,
      {.x = heads, .out = heads, .format = FakeQuantFormat::kS4, .group = IndexLayoutFp4::kGroup});
}

}  // namespace

void make_queries(const Context& context, const AttentionInArgs& args, const TensorView& latent) {
  Projection c(context,
               {.x = latent, .weight = args.weights.q_norm, .out = latent, .eps = args.norm_eps},
               args.weights.wq_b);
  queries(context, args, c);
  if (args.index_q.rank > 0) index_queries(context, args, c);
}

}  // namespace dsv4
