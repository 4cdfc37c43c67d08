#include "dsv4/model/dspark.h"

#include <algorithm>

#include "dsv4/base/error.h"
#include "dsv4/model/hyper_streams.h"
#include "dsv4/model/model.h"
#include "dsv4/model/moe.h"
#include "dsv4/ops/model/attention_in/rows.h"
#include "dsv4/ops/model/embed/embed.h"
#include "dsv4/ops/parts/linear/projection.h"

namespace dsv4 {
namespace {

// out [n, k] += more [n, k]: hc_post of a single stream, with post and comb 1.
void add(const Step& step, const ConstTensorView& more, const TensorView& out) {
  const int64_t n = out.dim(0);
  const ConstTensorView ones = step.drafter.ones.slice(0, 0, n);
  hc_post(step.context, {.y = more,
                         .post = ones,
                         .comb = ones.reshape({n, 1, 1}),
                         .streams = out.reshape({n, 1, out.dim(1)})});
}

// Columns of a plain weight of one row.
WeightView columns(const ConstTensorView& row, int64_t begin, int64_t end) {
  const WeightFormat format = row.dtype == DType::kF32    ? WeightFormat::kF32
                              : row.dtype == DType::kBF16 ? WeightFormat::kBF16
                                                          : WeightFormat::kF16;
  return {.format = format, .n = 1, .k = end - begin, .data = row.slice(1, begin, end)};
}

}  // namespace

LayerTaps::LayerTaps(Step& step)
    : step_(step),
      taps_(step.activation(
          {step.num_tokens, std::ssize(step.config.dspark.taps) * step.config.hidden_size})) {
}

void LayerTaps::take(int64_t layer, const TensorView& streams) {
  const std::vector<int64_t>& wanted = step_.config.dspark.taps;
  const int64_t d = step_.config.hidden_size;
  const auto at = std::ranges::find(wanted, layer) - wanted.begin();
  if (at == std::ssize(wanted)) return;
  hc_mean(step_.context, {.streams = streams, .out = taps_.slice(1, at * d, (at + 1) * d)});
}

void LayerTaps::enter(const DrafterWeights& weights, const RopeTables& tables,
                      std::span<const LayerCache> caches) {
  const Context& context = step_.context;
  const ModelConfig& m = step_.config;
  const int64_t t = step_.num_tokens;
  const Scratch::Scope scope(step_.scratch);
  const TensorView x = step_.activation({t, m.hidden_size});
  const TensorView kv = step_.activation({t, m.head_dim});
  {
    const ProjectionScope codes(context);
    Projection(context, taps_).into(weights.main_proj, x);
  }
  const ProjectionScope codes(context);
  Projection main(context, {.x = x, .weight = weights.main_norm, .out = x, .eps = m.norm_eps},
                  weights.layers[0].attn.wkv);
  for (size_t stage = 0; stage < caches.size(); ++stage) {
    const AttentionWeights& attention = weights.layers[stage].attn;
    main.into(attention.wkv, kv);
    append_window(context,
                  {.weights = attention,
                   .norm_eps = m.norm_eps,
                   .positions = step_.positions,
                   .freqs = tables.raw,
                   .window = caches[stage].window,
                   .window_rows = step_.window().closed_rows},
                  kv);
  }
}

void ModelShard::draft_block(Step& step, std::span<const LayerCache> caches,
                             const BlockGuesses& out) const {
  const DrafterWeights& w = drafter(DrafterKind::kDspark);
  const ModelConfig& m = config();
  DSV4_CHECK(caches.size() == w.layers.size(), "{} caches for {} stages", caches.size(),
             w.layers.size());
  const Scratch::Scope scope(step.scratch);
  HyperStreams hyper(step);
  hyper.choose_outputs(w.layers.front());
  run_embedding(step, hyper.streams());
  for (size_t stage = 0; stage < caches.size(); ++stage) {
    const LayerWeights& layer = w.layers[stage];
    step.layer = static_cast<int64_t>(schedule().size() + stage);
    const HcBoundaryArgs before_attention = hyper.boundary(layer.hc_attn, layer.attn_norm);
    run_attention(step, LayerSpec{}, layer.attn, rope_, caches[stage], before_attention,
                  hyper.output(step.act));
    const HcBoundaryArgs before_moe = hyper.boundary(layer.hc_ffn, layer.ffn_norm);
    run_moe(step, layer.moe, before_moe, hyper.output(DType::kF32));
  }
  hyper.finish();
  const int64_t n = step.logits_rows.dim(0), width = m.hc_mult * m.hidden_size;
  const TensorView chosen = step.activation({n, m.hc_mult, m.hidden_size});
  embed(step.context, {.ids = step.logits_rows,
                       .table = hyper.streams().reshape({step.num_tokens, width}),
                       .out = chosen.reshape({n, 1, width})});
  run_hidden(step, chosen, w.hc_head, out.hidden);
  run_draft_logits(step, out.hidden, out.logits);
}

void ModelShard::guess_after(Step& step, const ConstTensorView& ids,
                             const BlockGuesses& rows) const {
  const DrafterWeights& w = drafter(DrafterKind::kDspark);
  const int64_t n = ids.dim(0), r = config().dspark.markov_rank;
  const Scratch::Scope scope(step.scratch);
  embed(step.context, {.ids = ids, .table = w.markov_w1, .out = rows.before.reshape({n, 1, r})});
  const TensorView more = step.scratch.take(DType::kF32, {n, config().vocab_size});
  linear(step.context, {.x = rows.before, .weight = w.markov_w2, .out = more});
  add(step, more, rows.logits);
}

void ModelShard::confidences(Step& step, const BlockGuesses& guesses, const TensorView& out) const {
  const DrafterWeights& w = drafter(DrafterKind::kDspark);
  const int64_t n = out.dim(0), d = config().hidden_size, runs = step.drafter.ones.dim(0);
  const Scratch::Scope scope(step.scratch);
  const TensorView more = step.scratch.take(DType::kF32, {n, 1});
  linear(step.context, {.x = guesses.hidden, .weight = columns(w.confidence, 0, d), .out = out});
  linear(
      step.context,
      {.x = guesses.before, .weight = columns(w.confidence, d, w.confidence.dim(1)), .out = more});
  for (int64_t at = 0; at < n; at += runs)
    add(step, more.slice(0, at, at + runs), out.slice(0, at, at + runs));
}

}  // namespace dsv4
