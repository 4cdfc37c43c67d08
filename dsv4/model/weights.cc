#include "dsv4/model/weights.h"

#include <algorithm>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/formats/float16.h"
#include "dsv4/model/weight_table.h"

namespace dsv4 {
namespace {

// Up to this size the values of a whole model are checked at load, in less than a second.
constexpr int64_t kSmallModelBytes = int64_t{1} << 30;
// Norms, biases, sinks, hyper-connections; of the float tables only the embedding is larger.
constexpr int64_t kVectorBytes = int64_t{16} << 20;

int64_t stored_bytes(const Checkpoint& checkpoint) {
  int64_t bytes = 0;
  for (const auto& [name, stored] : checkpoint.tensors()) bytes += stored.view.bytes();
  return bytes;
}

// Points every view into the checkpoint, checks its shape and its numbers, and leaves the rows of
// the rank.
class Loader final : public WeightVisitor {
 public:
  Loader(const Checkpoint& checkpoint, const ModelConfig& config, ShardId id,
         std::deque<Buffer>& widened)
      : checkpoint_(checkpoint),
        small_(stored_bytes(checkpoint) <= kSmallModelBytes),
        num_experts_(config.num_experts),
        id_(id),
        widened_(widened) {}

  void matrix(WeightView& weight, const WeightSpec& spec, int64_t n, int64_t k) override {
    weight = own_rows(whole(spec, n, k), spec.cut);
  }

  void grouped(WeightView& weight, const WeightSpec& spec, int64_t n, int64_t k,
               int64_t groups) override {
    weight = whole(spec, n, k);
    const int64_t rows = n / groups;
    if (weight.format == WeightFormat::kFp8Block && groups > 1 && rows % kFp8BlockSize != 0) {
      fail(ErrorCode::kUnsupported,
           "{}: groups of {} rows are not a multiple of the FP8 block size {}", spec.name, rows,
           kFp8BlockSize);
    }
    weight = own_rows(weight, spec.cut);
  }

  void floats(ConstTensorView& view, const WeightSpec& spec,
              std::initializer_list<int64_t> shape) override {
    view = own_rows(stored_floats(spec.name + ".weight", shape), spec.cut);
  }

  void f32(ConstTensorView& view, const WeightSpec& spec,
           std::initializer_list<int64_t> shape) override {
    const ConstTensorView stored = stored_floats(spec.name, shape);
    if (stored.dtype == DType::kF32) {
      view = stored;
    } else if (checkpoint_.has_data()) {
      view = widen(stored, shape);
    } else {
      view = {TensorMeta::contiguous(DType::kF32, shape), stored.data};
    }
    view = own_rows(view, spec.cut);
  }

  // Checked here, once: a bad id would otherwise abort generation later.
  void expert_ids(ConstTensorView& view, const WeightSpec& spec,
                  std::initializer_list<int64_t> shape) override {
    view = checkpoint_.tensor(spec.name, {DType::kI64, DType::kI32}, shape);
    if (!checkpoint_.has_data()) return;
    for (int64_t i = 0; i < view.numel(); ++i) {
      const int64_t expert =
          view.dtype == DType::kI64 ? view.as<int64_t>()[i] : view.as<int32_t>()[i];
      if (expert >= 0 && expert < num_experts_) continue;
      fail(ErrorCode::kBadInput, "{}: token {} is routed to expert {} of {}", spec.name,
           i / view.dim(1), expert, num_experts_);
    }
  }

 private:
  struct Rows {
    int64_t begin, end;
  };
  Rows rows_of_rank(int64_t n, const Cut& cut) const {
    const int64_t units = ceil_div(n, cut.unit);
    return {std::min(n, id_.first_unit(units) * cut.unit),
            std::min(n, id_.end_unit(units) * cut.unit)};
  }
  WeightView own_rows(const WeightView& weight, const Cut& cut) const {
    if (cut.unit == 0 || id_.whole()) return weight;
    const Rows rows = rows_of_rank(weight.n, cut);
    return weight.rows(rows.begin, rows.end);
  }
  ConstTensorView own_rows(const ConstTensorView& view, const Cut& cut) const {
    if (cut.unit == 0 || id_.whole()) return view;
    const Rows rows = rows_of_rank(view.dim(0), cut);
    return view.slice(0, rows.begin, rows.end);
  }

  // NaN in a matrix that only selects (router, indexer) would never reach the logits, so values are
  // checked here. Of a model of many gigabytes, the codes and the experts' scales are left to
  // `inspect --verify`: reading them would take minutes.
  WeightView whole(const WeightSpec& spec, int64_t n, int64_t k) const {
    const WeightView weight = checkpoint_.weight(spec.name, n, k);
    const bool plain = weight.scale.empty();
    const bool selects = spec.part == WeightPart::kRouter || spec.part == WeightPart::kIndexer ||
                         spec.part == WeightPart::kCompressor;
    if (small_ || (plain && selects)) checkpoint_.check_finite(spec.name + ".weight");
    if (!plain && (small_ || spec.part != WeightPart::kExperts))
      checkpoint_.check_finite(
          spec.name + (weight.format == WeightFormat::kNvfp4 ? ".weight_scale" : ".scale"));
    return weight;
  }

  ConstTensorView stored_floats(const std::string& tensor, std::initializer_list<int64_t> shape) {
    const ConstTensorView view =
        checkpoint_.tensor(tensor, {DType::kF32, DType::kBF16, DType::kF16}, shape);
    if (small_ || view.bytes() <= kVectorBytes) checkpoint_.check_finite(tensor);
    return view;
  }

  ConstTensorView widen(const ConstTensorView& stored, std::initializer_list<int64_t> shape) {
    const Buffer& copy = widened_.emplace_back(DType::kF32, shape);
    for (int64_t i = 0; i < stored.numel(); ++i) {
      const uint16_t code = stored.as<uint16_t>()[i];
      copy.as<float>()[i] = stored.dtype == DType::kBF16 ? bf16_to_f32(code) : f16_to_f32(code);
    }
    return copy;
  }

  const Checkpoint& checkpoint_;
  const bool small_;  // every value is checked
  const int64_t num_experts_;
  const ShardId id_;
  std::deque<Buffer>& widened_;
};

// Calls a function for every tensor that is present.
class Walk final : public WeightVisitor {
 public:
  explicit Walk(const std::function<void(ConstTensorView&)>& visit) : visit_(visit) {}

  void matrix(WeightView& w, const WeightSpec&, int64_t, int64_t) override {
    for (ConstTensorView* view : {&w.data, &w.scale, &w.codebook}) show(*view);
  }
  void grouped(WeightView& w, const WeightSpec& spec, int64_t n, int64_t k, int64_t) override {
    matrix(w, spec, n, k);
  }
  void floats(ConstTensorView& view, const WeightSpec&, std::initializer_list<int64_t>) override {
    show(view);
  }
  void f32(ConstTensorView& view, const WeightSpec&, std::initializer_list<int64_t>) override {
    show(view);
  }
  void expert_ids(ConstTensorView& view, const WeightSpec&,
                  std::initializer_list<int64_t>) override {
    show(view);
  }

 private:
  void show(ConstTensorView& view) {
    if (!view.empty()) visit_(view);
  }

  const std::function<void(ConstTensorView&)>& visit_;
};

void require_mtp(const Checkpoint& checkpoint, const ModelConfig& config) {
  const std::string why = no_mtp(checkpoint, config);
  if (!why.empty()) fail(ErrorCode::kBadInput, "{}", why);
}

// The layers of the model, then the drafter's.
std::vector<LayerWeights*> all_layers(ModelWeights& weights) {
  std::vector<LayerWeights*> layers;
  for (LayerWeights& layer : weights.layers) layers.push_back(&layer);
  if (weights.drafter) layers.push_back(&weights.drafter->layer);
  return layers;
}

}  // namespace

std::string no_mtp(const Checkpoint& checkpoint, const ModelConfig& config) {
  if (config.dspark)
    return fmt::format("{} has a DSpark drafter, which this program does not run",
                       checkpoint.folder());
  if (config.mtp_layers > 1)
    return fmt::format("{} has {} MTP blocks; this program runs one", checkpoint.folder(),
                       config.mtp_layers);
  if (config.mtp_layers == 1 && checkpoint.has("mtp.0.e_proj.weight")) return {};
  return fmt::format(
      "{} has no MTP block (num_nextn_predict_layers is {}, mtp.0.e_proj.weight is {})",
      checkpoint.folder(), config.mtp_layers,
      checkpoint.has("mtp.0.e_proj.weight") ? "there" : "missing");
}

ModelWeights load_weights(const Checkpoint& checkpoint, const ModelConfig& config, ShardId id,
                          DrafterKind wanted) {
  DSV4_CHECK(0 <= id.rank && id.rank < id.world, "rank {} of {}", id.rank, id.world);
  ModelWeights weights;
  if (wanted == DrafterKind::kMtp) {
    require_mtp(checkpoint, config);
    weights.drafter.emplace();
  }
  Loader loader(checkpoint, config, id, weights.widened);
  visit_weights(config, weights, loader);
  for (const std::string& tensor : checkpoint.unused()) {
    (tensor.rfind("mtp.", 0) == 0 ? weights.skipped : weights.unused).push_back(tensor);
  }
  return weights;
}

std::vector<PackedExperts> choose_layouts(const Context& context, ModelWeights& weights) {
  std::vector<PackedExperts> packed;
  for (LayerWeights* layer : all_layers(weights)) {
    MoeWeights& block = layer->moe;
    if (!block.images.empty() || best_layout(context, block.routed) == WeightLayout::kFile)
      continue;
    block.images = expert_images(block.routed);
    const Buffer& scale2 =
        weights.widened.emplace_back(Buffer(DType::kF32, {std::ssize(block.routed), 3}));
    float* factor = scale2.as<float>();
    for (const ExpertWeights& expert : block.routed)
      for (const WeightView* w : {&expert.w1, &expert.w3, &expert.w2}) *factor++ = w->scale2;
    block.images.scale2 = scale2;
    // Zeros until the images are there (engine/pack_experts.h).
    if (may_fold(block.images))
      block.images.exponents =
          weights.widened.emplace_back(Buffer(DType::kI32, {std::ssize(block.routed), 3}));
    block.images.gate_up_bytes.data = block.routed.front().w1.data.data;
    block.images.down_bytes.data = block.routed.front().w2.data.data;
    packed.push_back({.stored = block.routed, .images = block.images});
    for (ExpertWeights& expert : block.routed) {
      for (WeightView* w : {&expert.w1, &expert.w3, &expert.w2})
        for (ConstTensorView* view : {&w->data, &w->scale, &w->codebook}) view->data = nullptr;
    }
  }
  return packed;
}

void for_each_tensor(const ModelConfig& config, ModelWeights& weights,
                     const std::function<void(ConstTensorView&)>& visit) {
  Walk walk(visit);
  visit_weights(config, weights, walk);
  for (LayerWeights* layer : all_layers(weights)) {
    ExpertImages& images = layer->moe.images;
    if (images.empty()) continue;
    for (ConstTensorView* view : {&images.gate_up_bytes, &images.down_bytes, &images.scale2})
      visit(*view);
    if (!images.exponents.empty()) visit(images.exponents);
  }
}

}  // namespace dsv4
