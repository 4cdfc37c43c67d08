#include "dsv4/model/model.h"

#include <algorithm>

#include "dsv4/base/error.h"
#include "dsv4/model/moe.h"
#include "dsv4/model/projection.h"
#include "dsv4/ops/embed/embed.h"
#include "dsv4/ops/mhc/mhc.h"
#include "dsv4/ops/norm/norm.h"

namespace dsv4 {

Model Model::load(const std::string& folder) {
  Model model;
  model.config_ = load_config(folder + "/config.json");
  model.schedule_ = layer_schedule(model.config_);
  model.checkpoint_ = std::make_unique<Checkpoint>(Checkpoint::open(folder));
  model.weights_ = load_weights(*model.checkpoint_, model.config_);
  model.rope_ = make_rope_tables(model.config_);
  return model;
}

void Model::forward(const Context& context, const ForwardBatch& batch,
                    std::span<const LayerCache> caches, Scratch& scratch,
                    const TensorView& logits) const {
  if (context.numerics == Numerics::kOfficial) check_official_numerics(config_);
  DSV4_CHECK(caches.size() == schedule_.size(), "{} caches for {} layers", caches.size(),
             schedule_.size());
  if (batch.ids.empty()) return;
  const Scratch::Scope scope(scratch);
  Step step = make_step(context, config_, batch, caches, scratch);
  const TensorView streams =
      step.activation({step.num_tokens, config_.hc_mult, config_.hidden_size});
  embed(context, {.ids = step.ids, .table = weights_.embed, .out = streams});
  for (size_t l = 0; l < schedule_.size(); ++l) run_layer(step, l, caches[l], streams);
  run_head(step, streams, logits);
}

namespace {

// One sub-layer between hyper-connections: streams -> x -> norm -> block -> back into the streams.
template <class Block>
void hyper_connected(Step& step, const HyperWeights& hc, const ConstTensorView& norm,
                     const TensorView& streams, const Block& block) {
  const Scratch::Scope scope(step.scratch);
  const ModelConfig& m = step.config;
  const int64_t t = step.num_tokens;
  const TensorView x = step.activation({t, m.hidden_size});
  const TensorView post = step.scratch.take(DType::kF32, {t, m.hc_mult});
  const TensorView comb = step.scratch.take(DType::kF32, {t, m.hc_mult, m.hc_mult});
  hc_pre(step.context, {.streams = streams,
                        .fn = hc.fn,
                        .base = hc.base,
                        .scale = hc.scale,
                        .norm_eps = m.norm_eps,
                        .hc_eps = m.hc_eps,
                        .sinkhorn_iters = m.sinkhorn_iters,
                        .out = x,
                        .post = post,
                        .comb = comb});
  rms_norm(step.context, {.x = x, .weight = norm, .out = x, .eps = m.norm_eps});
  hc_post(step.context, {.y = block(x), .post = post, .comb = comb, .streams = streams});
}

}  // namespace

void Model::run_layer(Step& step, size_t l, const LayerCache& cache,
                      const TensorView& streams) const {
  const LayerWeights& layer = weights_.layers[l];
  hyper_connected(step, layer.hc_attn, layer.attn_norm, streams, [&](const TensorView& x) {
    return attention(step, schedule_[l], layer.attn, rope_, cache, x);
  });
  hyper_connected(step, layer.hc_ffn, layer.ffn_norm, streams,
                  [&](const TensorView& x) { return moe(step, layer.moe, x); });
}

// Only the rows whose logits are wanted go through the head.
void Model::run_head(Step& step, const TensorView& streams, const TensorView& logits) const {
  const auto n = static_cast<int64_t>(step.batch.logits_rows.size());
  if (n == 0) return;
  const ModelConfig& m = config_;
  const int64_t width = m.hc_mult * m.hidden_size;
  const TensorView rows = step.scratch.take(DType::kI32, {n});
  std::copy(step.batch.logits_rows.begin(), step.batch.logits_rows.end(), rows.as<int32_t>());
  const TensorView chosen = step.activation({n, m.hc_mult, m.hidden_size});
  // A gather of rows is what an embedding does.
  embed(step.context, {.ids = rows,
                       .table = streams.reshape({step.num_tokens, width}),
                       .out = chosen.reshape({n, 1, width})});

  const HyperWeights& hc = weights_.hc_head;
  const TensorView h = step.activation({n, m.hidden_size});
  hc_head(step.context, {.streams = chosen,
                         .fn = hc.fn,
                         .base = hc.base,
                         .scale = hc.scale,
                         .norm_eps = m.norm_eps,
                         .hc_eps = m.hc_eps,
                         .out = h});
  rms_norm(step.context, {.x = h, .weight = weights_.norm, .out = h, .eps = m.norm_eps});
  Projection(step, h).plain(weights_.head, logits);
}

}  // namespace dsv4
