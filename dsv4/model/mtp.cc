#include "dsv4/model/mtp.h"

#include "dsv4/base/error.h"
#include "dsv4/model/hyper_streams.h"
#include "dsv4/model/model.h"
#include "dsv4/model/moe.h"
#include "dsv4/model/ranks.h"
#include "dsv4/ops/model/attention_in/rows.h"
#include "dsv4/ops/model/embed/embed.h"
#include "dsv4/ops/parts/linear/projection.h"

namespace dsv4 {
namespace {

// Streams of the token before each one, from a table [n, m, D].
void gather_before(Step& step, const ConstTensorView& table, const TensorView& out) {
  const int64_t width = step.config.hc_mult * step.config.hidden_size;
  embed(step.context, {.ids = step.drafter.before,
                       .table = table.reshape({table.dim(0), width}),
                       .out = out.reshape({out.dim(0), 1, width})});
}

// X0 [T, m, D] from the streams X [T, m, D] and the step's tokens. hc_post adds the token's part to
// every stream: with post 1 and the identity as comb it is an addition.
void combine(Step& step, const DrafterWeights& w, const ConstTensorView& table, const TensorView& x,
             const TensorView& x0) {
  const ModelConfig& m = step.config;
  const int64_t t = step.num_tokens, d = m.hidden_size;
  const Scratch::Scope scope(step.scratch);
  const TensorView e = step.activation({t, d}), part = step.activation({t, d});
  if (step.ranks == nullptr) {
    embed(step.context, {.ids = step.ids, .table = table, .out = e.reshape({t, 1, d})});
  } else {
    embed_rows_of_ranks(step, table, e);
  }
  const ProjectionScope codes(step.context);
  Projection(step.context, {.x = e, .weight = w.enorm, .out = e, .eps = m.norm_eps}, w.e_proj)
      .into(w.e_proj, part);
  const TensorView z = x.reshape({t * m.hc_mult, d});
  Projection(step.context, {.x = z, .weight = w.hnorm, .out = z, .eps = m.norm_eps}, w.h_proj)
      .into(w.h_proj, x0.reshape({t * m.hc_mult, d}));
  hc_post(step.context,
          {.y = part, .post = step.drafter.ones, .comb = step.drafter.identity, .streams = x0});
}

}  // namespace

void enter_rows(Step& step, const DrafterWeights& weights, const ConstTensorView& embedding,
                const RopeTables& tables, const LayerCache& cache, const DrafterStreams& drafter) {
  const ModelConfig& m = step.config;
  const int64_t t = step.num_tokens, runs = step.state_slots.dim(0), d = m.hidden_size;
  const int64_t width = m.hc_mult * d;
  const Scratch::Scope scope(step.scratch);
  // The token before a run is of an earlier step.
  const TensorView all = drafter.streams.slice(0, 0, t + runs);
  embed(step.context, {.ids = step.state_slots,
                       .table = drafter.pending.reshape({drafter.pending.dim(0), width}),
                       .out = all.slice(0, t, t + runs).reshape({runs, 1, width})});
  const TensorView before = step.activation({t, m.hc_mult, d});
  gather_before(step, all, before);
  const TensorView x0 = step.activation({t, m.hc_mult, d});
  combine(step, weights, embedding, before, x0);

  const LayerWeights& block = weights.layers[0];
  HyperStreams hyper(step, x0);
  const HcBoundaryArgs boundary = hyper.boundary(block.hc_attn, block.attn_norm);
  hc_boundary(step.context, boundary);
  const WeightView& wkv = block.attn.wkv;
  const TensorView kv = step.activation({t, wkv.n});
  {
    const ProjectionScope codes(step.context);
    Projection(step.context, boundary.x).into(wkv, kv);
  }
  append_window(step.context,
                {.weights = block.attn,
                 .norm_eps = m.norm_eps,
                 .positions = step.drafter.positions,
                 .freqs = tables.raw,
                 .window = cache.window,
                 .window_rows = step.drafter.rows},
                kv);
}

void ModelShard::draft(Step& step, const LayerCache& cache, const ConstTensorView& before,
                       const TensorView& streams, const TensorView& logits) const {
  const DrafterWeights& w = drafter(DrafterKind::kMtp);
  const LayerWeights& block = w.layers[0];
  const ModelConfig& m = config();
  const int64_t t = step.num_tokens;
  const Scratch::Scope scope(step.scratch);
  step.layer = std::ssize(schedule());
  const TensorView x = step.activation({t, m.hc_mult, m.hidden_size});
  gather_before(step, before, x);
  combine(step, w, weights_.embed, x, streams);
  HyperStreams hyper(step, streams);
  hyper.choose_outputs(block);
  const HcBoundaryArgs before_attention = hyper.boundary(block.hc_attn, block.attn_norm);
  run_attention(step, LayerSpec{}, block.attn, rope_, cache, before_attention,
                hyper.output(step.act));
  const HcBoundaryArgs before_moe = hyper.boundary(block.hc_ffn, block.ffn_norm);
  run_moe(step, block.moe, before_moe, hyper.output(DType::kF32));
  hyper.finish();
  const TensorView h = step.activation({t, m.hidden_size});
  run_hidden(step, streams, w.hc_head, h);
  run_draft_logits(step, h, logits);
}

}  // namespace dsv4
