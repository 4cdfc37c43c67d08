#include "dsv4/model/model.h"

#include <optional>
#include <set>
#include <utility>

#include "dsv4/base/error.h"
#include "dsv4/model/dspark.h"
#include "dsv4/model/hyper_streams.h"
#include "dsv4/model/moe.h"
#include "dsv4/model/mtp.h"
#include "dsv4/model/ranks.h"
#include "dsv4/ops/model/embed/embed.h"
#include "dsv4/ops/parts/linear/projection.h"
#include "dsv4/ops/parts/mhc/mhc.h"
#include "dsv4/ops/parts/norm/norm.h"

namespace dsv4 {

ModelShard::ModelShard(std::shared_ptr<const ModelSpec> spec, ShardId id, DrafterKind wanted)
    : spec_(std::move(spec)),
      id_(id),
      weights_(load_weights(checkpoint(), config(), id, wanted, spec_->placement())),
      rope_(make_rope_tables(config(), weights_.widened)),
      least_shared_tokens_(kLeastSharedTokens) {
}

ModelShard ModelShard::load(const std::string& folder, DrafterKind wanted) {
  return ModelShard(ModelSpec::load(folder), {}, wanted);
}

ModelShard ModelShard::load(const std::string& folder, int world, ExpertsPlacement placement,
                            DrafterKind wanted) {
  return of_ranks(ModelSpec::load(folder, placement), world, wanted);
}

ModelShard ModelShard::of_ranks(const std::shared_ptr<const ModelSpec>& spec, int world,
                                DrafterKind wanted) {
  ModelShard first(spec, {0, world}, wanted);
  std::vector<std::shared_ptr<ModelShard>> others;
  for (int rank = 1; rank < world; ++rank)
    others.push_back(std::make_shared<ModelShard>(spec, ShardId{rank, world}, wanted));
  first.lead(std::move(others));
  return first;
}

int64_t ModelShard::weight_bytes() const {
  std::set<const std::byte*> seen;
  int64_t bytes = 0;
  const auto visit = [&](const ConstTensorView& view) {
    if (seen.insert(view.data).second) bytes += view.bytes();
  };
  // The visit changes no view.
  dsv4::for_each_tensor(config(), const_cast<ModelWeights&>(weights_), visit);
  return bytes;
}

void ModelShard::lead(std::vector<std::shared_ptr<ModelShard>> others) {
  for (size_t i = 0; i < others.size(); ++i)
    DSV4_CHECK(others[i]->id() == (ShardId{static_cast<int>(i) + 1, id_.world}),
               "rank {} of {} in place {}", others[i]->id().rank, others[i]->id().world, i + 1);
  DSV4_CHECK(id_.rank == 0 && std::ssize(others) == id_.world - 1, "rank {} of {} with {} others",
             id_.rank, id_.world, others.size());
  others_ = std::move(others);
}

void ModelShard::share_steps_from(int64_t tokens) {
  least_shared_tokens_ = std::max(tokens, kSharedTokensUnit + 1);
  for (const auto& other : others_) other->share_steps_from(tokens);
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

void ModelShard::forward(Step& step, std::span<const LayerCache> caches, const TensorView& logits,
                         const DrafterStreams& drafter) const {
  DSV4_CHECK(step.ranks == nullptr ? id_.whole() : step.ranks->id() == id_,
             "a step of rank {} of {} without a communicator of its own", id_.rank, id_.world);
  if (step.official()) check_official_numerics(config());
  const size_t layers = schedule().size();
  const int64_t blocks = drafter_blocks(config(), step.enters);
  DSV4_CHECK(std::ssize(caches) == std::ssize(schedule()) + blocks,
             "{} caches for {} layers and {} of a drafter", caches.size(), layers, blocks);
  const Scratch::Scope scope(step.scratch);
  step.token_ends = share_tokens(step, least_shared_tokens_);
  HyperStreams hyper = step.enters == DrafterKind::kMtp
                           ? HyperStreams(step, drafter.streams.slice(0, 0, step.num_tokens))
                           : HyperStreams(step);
  std::optional<LayerTaps> taps;
  if (step.enters == DrafterKind::kDspark) taps.emplace(step);
  hyper.choose_outputs(weights_.layers.front());
  run_embedding(step, hyper.streams());
  for (size_t l = 0; l < layers; ++l) {
    const LayerWeights& layer = weights_.layers[l];
    step.layer = static_cast<int64_t>(l);
    const HcBoundaryArgs before_attention = hyper.boundary(layer.hc_attn, layer.attn_norm);
    run_attention(step, schedule()[l], layer.attn, rope_, caches[l], before_attention,
                  hyper.output(step.act));
    // The boundary before a block takes the output of the one before.
    if (taps && l > 0) taps->take(step.layer - 1, hyper.streams());
    const HcBoundaryArgs before_moe = hyper.boundary(layer.hc_ffn, layer.ffn_norm);
    run_moe(step, layer.moe, before_moe, hyper.output(DType::kF32));
  }
  hyper.finish();
  if (step.enters == DrafterKind::kMtp)
    enter_rows(step, this->drafter(step.enters), weights_.embed, rope_, caches.back(), drafter);
  if (taps) {
    taps->take(step.layer, hyper.streams());
    taps->enter(this->drafter(step.enters), rope_, caches.subspan(layers));
  }
  run_head(step, hyper.streams(), logits);
}

void ModelShard::place(std::shared_ptr<Device> device, Buffer memory) {
  device_ = std::move(device);
  device_memory_ = std::move(memory);
}

void ModelShard::fetch_experts(const std::vector<ExpertsFetchArgs>& fetch,
                               std::shared_ptr<ExpertStore> owner) {
  DSV4_CHECK(fetch.size() == weights_.layers.size(), "experts of {} layers for {}", fetch.size(),
             weights_.layers.size());
  for (size_t l = 0; l < fetch.size(); ++l) {
    MoeWeights& block = weights_.layers[l].moe;
    DSV4_CHECK(!block.images.empty(), "the experts of layer {} are no images", l);
    block.images.places = fetch[l].places;
    block.fetch = fetch[l];
  }
  expert_store_ = std::move(owner);
}

void ModelShard::for_each_tensor(const std::function<void(ConstTensorView&)>& visit) {
  visit(rope_.raw);
  visit(rope_.compressed);
  dsv4::for_each_tensor(config(), weights_, visit);
}

void ModelShard::run_embedding(Step& step, const TensorView& streams) const {
  if (step.ranks != nullptr) return embed_of_ranks(step, weights_.embed, streams);
  embed(step.context, {.ids = step.ids, .table = weights_.embed, .out = streams});
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
  const TensorView h = step.activation({n, m.hidden_size});
  run_hidden(step, chosen, weights_.hc_head, h);
  run_logits(step, h, weights_.norm, logits.slice(0, 0, n));
}

void ModelShard::run_hidden(Step& step, const ConstTensorView& streams, const HyperWeights& hc,
                            const TensorView& hidden) const {
  hc_head(step.context, {.streams = streams,
                         .fn = hc.fn,
                         .base = hc.base,
                         .scale = hc.scale,
                         .norm_eps = config().norm_eps,
                         .hc_eps = config().hc_eps,
                         .out = hidden});
}

void ModelShard::run_logits(Step& step, const ConstTensorView& hidden, const ConstTensorView& norm,
                            const TensorView& logits) const {
  const TensorView h = step.activation({hidden.dim(0), config().hidden_size});
  rms_norm(step.context, {.x = hidden, .weight = norm, .out = h, .eps = config().norm_eps});
  if (step.ranks != nullptr) return head_of_ranks(step, weights_.head, h, logits);
  linear(step.context, {.x = h, .weight = weights_.head, .out = logits});
}

// The kernels that read bit planes do four times the work for up to 8 rows as for up to 2
// (docs/kernels/gemm_kbit_planes.md), and are then expected to take as long as a bf16 head does.
void ModelShard::run_draft_logits(Step& step, const ConstTensorView& hidden,
                                  const TensorView& logits) const {
  constexpr int64_t kFewRows = 2;
  const ConstTensorView& norm = weights_.drafter->norm;
  const bool few = step.context.device == nullptr || hidden.dim(0) <= kFewRows;
  const TensorView own = step.ranks == nullptr ? logits : own_guess_logits(step, logits);
  const TensorView h = step.activation({hidden.dim(0), config().hidden_size});
  const RmsNormArgs normalized{.x = hidden, .weight = norm, .out = h, .eps = config().norm_eps};
  if (own.dim(1) > 0 && step.draft_head != nullptr && few) {
    const ProjectionScope codes(step.context);
    Projection(step.context, normalized, *step.draft_head).into(*step.draft_head, own);
  } else if (own.dim(1) > 0) {
    rms_norm(step.context, normalized);
    linear(step.context, {.x = h, .weight = weights_.head, .out = own});
  }
  if (step.ranks != nullptr) gather_guess_logits(step, logits);
}

const DrafterWeights& ModelShard::drafter(DrafterKind kind) const {
  DSV4_CHECK(weights_.drafter.has_value() && weights_.drafter->kind == kind,
             "guesses by {} of a model without", name(kind));
  return *weights_.drafter;
}

}  // namespace dsv4
