#include "dsv4/model/model.h"

#include "dsv4/base/error.h"
#include "dsv4/model/moe.h"
#include "dsv4/model/projection.h"
#include "dsv4/ops/embed/embed.h"
#include "dsv4/ops/mhc/mhc.h"
#include "dsv4/ops/norm/norm.h"

namespace dsv4 {

ModelShard::ModelShard(std::shared_ptr<const ModelSpec> spec, ShardId id)
    : spec_(std::move(spec)),
      id_(id),
      weights_(load_weights(checkpoint(), config(), id)),
      rope_(make_rope_tables(config(), weights_.widened)) {
}

ModelShard ModelShard::load(const std::string& folder) {
  return ModelShard(ModelSpec::load(folder));
}

ModelShard ModelShard::blank(const std::string& what, const ModelConfig& config,
                             const std::map<std::string, TensorMeta>& tensors,
                             const Checkpoint::Fill& fill) {
  return ModelShard(
      std::make_shared<const ModelSpec>(config, Checkpoint::blank(what, tensors, fill)));
}

ModelShard ModelShard::shapes(const std::string& what, const ModelConfig& config,
                              const std::map<std::string, TensorMeta>& tensors) {
  return ModelShard(std::make_shared<const ModelSpec>(config, Checkpoint::shapes(what, tensors)));
}

void ModelShard::forward(Step& step, std::span<const LayerCache> caches,
                         const TensorView& logits) const {
  if (!id_.whole())
    fail(ErrorCode::kUnsupported, "rank {} of {}: a forward step over several ranks is not built",
         id_.rank, id_.world);
  if (step.official()) check_official_numerics(config());
  DSV4_CHECK(caches.size() == schedule().size(), "{} caches for {} layers", caches.size(),
             schedule().size());
  const Scratch::Scope scope(step.scratch);
  const TensorView streams =
      step.activation({step.num_tokens, config().hc_mult, config().hidden_size});
  embed(step.context, {.ids = step.ids, .table = weights_.embed, .out = streams});
  for (size_t l = 0; l < schedule().size(); ++l) run_layer(step, l, caches[l], streams);
  run_head(step, streams, logits);
}

void ModelShard::place(std::shared_ptr<Device> device, Buffer memory) {
  device_ = std::move(device);
  device_memory_ = std::move(memory);
}

void ModelShard::for_each_tensor(const std::function<void(ConstTensorView&)>& visit) {
  visit(rope_.raw);
  visit(rope_.compressed);
  dsv4::for_each_tensor(config(), weights_, visit);
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

void ModelShard::run_layer(Step& step, size_t l, const LayerCache& cache,
                           const TensorView& streams) const {
  const LayerWeights& layer = weights_.layers[l];
  hyper_connected(step, layer.hc_attn, layer.attn_norm, streams, [&](const TensorView& x) {
    return attention(step, schedule()[l], layer.attn, rope_, cache, x);
  });
  hyper_connected(step, layer.hc_ffn, layer.ffn_norm, streams,
                  [&](const TensorView& x) { return moe(step, layer.moe, x); });
}

// Only rows whose logits are requested go through the head.
void ModelShard::run_head(Step& step, const TensorView& streams, const TensorView& logits) const {
  const int64_t n = step.logits_rows.dim(0);
  if (n == 0) return;
  const ModelConfig& m = config();
  const int64_t width = m.hc_mult * m.hidden_size;
  const TensorView chosen = step.activation({n, m.hc_mult, m.hidden_size});
  // An embedding lookup is a row gather, so embed() selects the rows.
  embed(step.context, {.ids = step.logits_rows,
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
  Projection(step, h).plain(weights_.head, logits.slice(0, 0, n));
}

}  // namespace dsv4
