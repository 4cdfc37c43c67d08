#include "dsv4/model/model.h"

#include <utility>

#include "dsv4/base/error.h"
#include "dsv4/model/moe.h"
#include "dsv4/ops/model/embed/embed.h"
#include "dsv4/ops/model/hc_boundary/hc_boundary.h"
#include "dsv4/ops/parts/linear/linear.h"
#include "dsv4/ops/parts/mhc/mhc.h"
#include "dsv4/ops/parts/norm/norm.h"

namespace dsv4 {

ModelShard::ModelShard(std::shared_ptr<const ModelSpec> spec, ShardId id, DrafterKind wanted)
    : spec_(std::move(spec)),
      id_(id),
      weights_(load_weights(checkpoint(), config(), id, wanted)),
      rope_(make_rope_tables(config(), weights_.widened)) {
}

ModelShard ModelShard::load(const std::string& folder, DrafterKind wanted) {
  return ModelShard(ModelSpec::load(folder), {}, wanted);
}

ModelShard ModelShard::blank(const std::string& what, const ModelConfig& config,
                             const std::map<std::string, TensorMeta>& tensors,
                             const Checkpoint::Fill& fill, DrafterKind wanted) {
  return ModelShard(
      std::make_shared<const ModelSpec>(config, Checkpoint::blank(what, tensors, fill)), {},
      wanted);
}

ModelShard ModelShard::shapes(const std::string& what, const ModelConfig& config,
                              const std::map<std::string, TensorMeta>& tensors,
                              DrafterKind wanted) {
  return ModelShard(std::make_shared<const ModelSpec>(config, Checkpoint::shapes(what, tensors)),
                    {}, wanted);
}

namespace {

// The residual streams, and what passes between them and the blocks of the network.
class HyperStreams {
 public:
  explicit HyperStreams(Step& step)
      : step_(step),
        streams_(step.activation({step.num_tokens, step.config.hc_mult, step.config.hidden_size})),
        x_(step.activation({step.num_tokens, step.config.hidden_size})),
        sum_(step.scratch.take(DType::kF32, {step.num_tokens, step.config.hidden_size})) {
    const int64_t t = step.num_tokens, m = step.config.hc_mult;
    for (Gates& gates : gates_) {
      gates = {.post = step.scratch.take(DType::kF32, {t, m}),
               .comb = step.scratch.take(DType::kF32, {t, m, m})};
    }
  }

  const TensorView& streams() const { return streams_; }
  // Where the next block writes: attention in the dtype of activations, the experts their f32 sum.
  // Both use the same bytes, one after the other.
  TensorView output(DType dtype) {
    y_ = {TensorMeta::contiguous(dtype, {sum_.dim(0), sum_.dim(1)}), sum_.data};
    return y_;
  }

  // From what the block before wrote, if there is one, to the input of the next block.
  HcBoundaryArgs boundary(const HyperWeights& hc, const ConstTensorView& norm) {
    const ModelConfig& m = step_.config;
    std::swap(gates_[0], gates_[1]);
    return {.y = y_,
            .y_post = gates_[1].post,
            .y_comb = gates_[1].comb,
            .hc = hc,
            .norm = norm,
            .norm_eps = m.norm_eps,
            .hc_eps = m.hc_eps,
            .sinkhorn_iters = m.sinkhorn_iters,
            .streams = streams_,
            .x = x_,
            .post = gates_[0].post,
            .comb = gates_[0].comb};
  }

  // The same for the last block, which no other follows.
  void finish() {
    hc_post(step_.context,
            {.y = y_, .post = gates_[0].post, .comb = gates_[0].comb, .streams = streams_});
  }

 private:
  struct Gates {
    TensorView post, comb;  // [T, m], [T, m, m] f32
  };

  Step& step_;
  TensorView streams_;  // [T, m, D]
  TensorView x_;        // [T, D]
  TensorView sum_;      // [T, D] f32
  TensorView y_;        // [T, D] in sum_, of the block before; rank 0: none
  Gates gates_[2];      // of the latest boundary; of the one before
};

}  // namespace

void ModelShard::forward(Step& step, std::span<const LayerCache> caches,
                         const TensorView& logits) const {
  if (!id_.whole())
    fail(ErrorCode::kUnsupported, "rank {} of {}: a forward step over several ranks is not built",
         id_.rank, id_.world);
  if (step.official()) check_official_numerics(config());
  DSV4_CHECK(caches.size() == schedule().size(), "{} caches for {} layers", caches.size(),
             schedule().size());
  const Scratch::Scope scope(step.scratch);
  HyperStreams hyper(step);
  embed(step.context, {.ids = step.ids, .table = weights_.embed, .out = hyper.streams()});
  for (size_t l = 0; l < schedule().size(); ++l) {
    const LayerWeights& layer = weights_.layers[l];
    const HcBoundaryArgs before_attention = hyper.boundary(layer.hc_attn, layer.attn_norm);
    run_attention(step, schedule()[l], layer.attn, rope_, caches[l], before_attention,
                  hyper.output(step.act));
    const HcBoundaryArgs before_moe = hyper.boundary(layer.hc_ffn, layer.ffn_norm);
    run_moe(step, layer.moe, before_moe, hyper.output(DType::kF32));
  }
  hyper.finish();
  run_head(step, hyper.streams(), logits);
}

void ModelShard::place(std::shared_ptr<Device> device, Buffer memory) {
  device_ = std::move(device);
  device_memory_ = std::move(memory);
}

void ModelShard::for_each_images(const std::function<void(ExpertImages&)>& visit) {
  for (LayerWeights& layer : weights_.layers)
    if (!layer.moe.images.empty()) visit(layer.moe.images);
}

void ModelShard::for_each_tensor(const std::function<void(ConstTensorView&)>& visit) {
  visit(rope_.raw);
  visit(rope_.compressed);
  dsv4::for_each_tensor(config(), weights_, visit);
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
  linear(step.context, {.x = h, .weight = weights_.head, .out = logits.slice(0, 0, n)});
}

}  // namespace dsv4
