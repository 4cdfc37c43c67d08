#include "dsv4/model/weights.h"

#include <algorithm>

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

// Points every view into the checkpoint, checks its shape and its numbers, and leaves what the rank
// owns.
class Loader final : public WeightVisitor {
 public:
  Loader(const Checkpoint& checkpoint, const ModelConfig& config, ShardId id,
         ExpertsPlacement placement, std::deque<Buffer>& widened)
      : checkpoint_(checkpoint),
        small_(stored_bytes(checkpoint) <= kSmallModelBytes),
        num_experts_(config.num_experts),
        id_(id),
        whole_experts_(placement == ExpertsPlacement::kWhole && !id.whole()),
        widened_(widened) {}

  void matrix(WeightView& weight, const WeightSpec& spec, int64_t n, int64_t k) override {
    const WeightView stored = checkpoint_.weight(spec.name, n, k);
    const bool of_owner = whole_experts_ && spec.cut.if_whole == Cut::IfWhole::kOfOwner;
    if (of_owner && !has_expert(spec.expert)) {
      weight = without_data(stored);
      return;
    }
    const bool whole = whole_experts_ && spec.cut.if_whole != Cut::IfWhole::kSame;
    weight = whole ? stored : own_rows(spec, stored);
    check_numbers(spec, weight);
  }

  void grouped(WeightView& weight, const WeightSpec& spec, int64_t n, int64_t k,
               int64_t groups) override {
    weight = checkpoint_.weight(spec.name, n, k);
    const int64_t rows = n / groups;
    if (weight.format == WeightFormat::kFp8Block && groups > 1 && rows % kFp8BlockSize != 0) {
      fail(ErrorCode::kUnsupported,
           "{}: groups of {} rows are not a multiple of the FP8 block size {}", spec.name, rows,
           kFp8BlockSize);
    }
    weight = own_rows(spec, weight);
    check_numbers(spec, weight);
  }

  void floats(ConstTensorView& view, const WeightSpec& spec,
              std::initializer_list<int64_t> shape) override {
    view = own_floats(spec, spec.name + ".weight", shape);
  }

  void f32(ConstTensorView& view, const WeightSpec& spec,
           std::initializer_list<int64_t> shape) override {
    const ConstTensorView stored = own_floats(spec, spec.name, shape);
    if (stored.dtype == DType::kF32) {
      view = stored;
    } else if (checkpoint_.has_data()) {
      view = widen(stored);
    } else {
      view = {TensorMeta::contiguous(DType::kF32, sizes(stored)), stored.data};
    }
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
  static std::span<const int64_t> sizes(const TensorMeta& meta) {
    return {meta.shape.data(), static_cast<size_t>(meta.rank)};
  }

  bool has_expert(int64_t e) const {
    const ShardId::Rows own = id_.rows(num_experts_, 1);
    return own.begin <= e && e < own.end;
  }

  static WeightView without_data(WeightView weight) {
    for (ConstTensorView* view : {&weight.data, &weight.scale, &weight.codebook})
      view->data = nullptr;
    return weight;
  }

  WeightView own_rows(const WeightSpec& spec, const WeightView& weight) const {
    if (spec.cut.unit == 0 || id_.whole()) return weight;
    if (weight.format == WeightFormat::kFp8Block && spec.cut.unit % kFp8BlockSize != 0) {
      fail(ErrorCode::kUnsupported,
           "{}: ranks divide it by {} rows, which are not a multiple of the FP8 block size {}",
           spec.name, spec.cut.unit, kFp8BlockSize);
    }
    const auto [begin, end] = id_.rows(weight.n, spec.cut.unit);
    return weight.rows(begin, end);
  }

  // NaN in a matrix that only selects (router, indexer) would never reach the logits, so values are
  // checked here, those of the rank's rows. Of a model of many gigabytes, the codes and the
  // experts' scales are left to `inspect --verify`: reading them would take minutes.
  void check_numbers(const WeightSpec& spec, const WeightView& weight) const {
    const bool plain = weight.scale.empty();
    const bool selects = spec.part == WeightPart::kRouter || spec.part == WeightPart::kIndexer ||
                         spec.part == WeightPart::kCompressor;
    if (small_ || (plain && selects)) checkpoint_.check_finite(spec.name + ".weight", weight.data);
    if (!plain && (small_ || spec.part != WeightPart::kExperts)) {
      const std::string scale = spec.name + ".weight_scale";  // of NVFP4; of MXFP4 in some folders
      checkpoint_.check_finite(checkpoint_.has(scale) ? scale : spec.name + ".scale", weight.scale);
    }
  }

  ConstTensorView own_floats(const WeightSpec& spec, const std::string& tensor,
                             std::initializer_list<int64_t> shape) {
    const ConstTensorView all =
        checkpoint_.tensor(tensor, {DType::kF32, DType::kBF16, DType::kF16}, shape);
    ConstTensorView view = all;
    if (spec.cut.unit > 0 && !id_.whole()) {
      const auto [begin, end] = id_.rows(all.dim(0), spec.cut.unit);
      view = all.slice(0, begin, end);
    }
    if (small_ || all.bytes() <= kVectorBytes) checkpoint_.check_finite(tensor, view);
    return view;
  }

  ConstTensorView widen(const ConstTensorView& stored) {
    const Buffer& copy =
        widened_.emplace_back(DType::kF32, std::initializer_list<int64_t>{stored.numel()});
    for (int64_t i = 0; i < stored.numel(); ++i) {
      const uint16_t code = stored.as<uint16_t>()[i];
      copy.as<float>()[i] = stored.dtype == DType::kBF16 ? bf16_to_f32(code) : f16_to_f32(code);
    }
    return {TensorMeta::contiguous(DType::kF32, sizes(stored)), copy.view().data};
  }

  const Checkpoint& checkpoint_;
  const bool small_;  // every value is checked
  const int64_t num_experts_;
  const ShardId id_;
  const bool whole_experts_;
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

// The layers of the model, then the drafter's.
std::vector<LayerWeights*> all_layers(ModelWeights& weights) {
  std::vector<LayerWeights*> layers;
  for (LayerWeights& layer : weights.layers) layers.push_back(&layer);
  if (weights.drafter)
    for (LayerWeights& layer : weights.drafter->layers) layers.push_back(&layer);
  return layers;
}

}  // namespace

std::string no_drafter(const Checkpoint& checkpoint, const ModelConfig& config, DrafterKind kind) {
  const bool dspark = kind == DrafterKind::kDspark;
  const std::string& folder = checkpoint.folder();
  if (dspark && config.dspark.empty())
    return fmt::format("{} has no DSpark drafter (config.json has no dspark_block_size)", folder);
  if (!dspark && !config.dspark.empty())
    return fmt::format("{} has a DSpark drafter and no MTP block", folder);
  if (!dspark && config.mtp_layers > 1)
    return fmt::format("{} has {} MTP blocks; this program runs one", folder, config.mtp_layers);
  const std::string first = dspark ? "mtp.0.main_proj.weight" : "mtp.0.e_proj.weight";
  if (config.mtp_layers >= 1 && checkpoint.has(first)) return {};
  return fmt::format("{} has no {} (num_nextn_predict_layers is {}, {} is {})", folder,
                     dspark ? "DSpark drafter" : "MTP block", config.mtp_layers, first,
                     checkpoint.has(first) ? "there" : "missing");
}

ModelWeights load_weights(const Checkpoint& checkpoint, const ModelConfig& config, ShardId id,
                          DrafterKind wanted, ExpertsPlacement placement) {
  DSV4_CHECK(0 <= id.rank && id.rank < id.world, "rank {} of {}", id.rank, id.world);
  ModelWeights weights;
  if (wanted != DrafterKind::kNone) {
    const std::string why = no_drafter(checkpoint, config, wanted);
    if (!why.empty()) fail(ErrorCode::kBadInput, "{}", why);
    weights.drafter.emplace().kind = wanted;
  }
  Loader loader(checkpoint, config, id, placement, weights.widened);
  visit_weights(config, weights, loader);
  if (placement == ExpertsPlacement::kWhole && !id.whole())
    for (LayerWeights* layer : all_layers(weights)) layer->moe.own = id.rows(config.num_experts, 1);
  for (const std::string& tensor : checkpoint.unused()) {
    (tensor.rfind("mtp.", 0) == 0 ? weights.skipped : weights.unused).push_back(tensor);
  }
  return weights;
}

namespace {

// Ranks with whole experts take the layout that one rank takes for all of them. Codebooks of others
// are not read here.
bool own_like_all(const MoeWeights& block) {
  const ExpertWeights& first = block.own_experts().front();
  const auto alike = [](const WeightView& a, const WeightView& b) {
    return a.format == b.format && a.bits == b.bits;
  };
  return std::ranges::all_of(block.routed, [&](const ExpertWeights& expert) {
    return alike(expert.w1, first.w1) && alike(expert.w3, first.w3) && alike(expert.w2, first.w2);
  });
}

bool wants_images(const Context& context, const MoeWeights& block) {
  const std::span<const ExpertWeights> own = block.own_experts();
  return block.images.empty() && !own.empty() && own_like_all(block) &&
         best_layout(context, own) == WeightLayout::kImage;
}

}  // namespace

std::vector<PackedExperts> choose_layouts(const Context& context, ModelWeights& weights) {
  std::vector<PackedExperts> packed;
  for (LayerWeights* layer : all_layers(weights)) {
    MoeWeights& block = layer->moe;
    if (!wants_images(context, block)) continue;
    const std::span<const ExpertWeights> own = block.own_experts();
    block.images = expert_images(own);
    const Buffer& scale2 = weights.widened.emplace_back(Buffer(DType::kF32, {std::ssize(own), 3}));
    float* factor = scale2.as<float>();
    for (const ExpertWeights& expert : own)
      for (const WeightView* w : {&expert.w1, &expert.w3, &expert.w2}) *factor++ = w->scale2;
    block.images.scale2 = scale2;
    // Zeros until the images are there (engine/pack_experts.h).
    if (may_fold(block.images))
      block.images.exponents =
          weights.widened.emplace_back(Buffer(DType::kI32, {std::ssize(own), 3}));
    block.images.gate_up_bytes.data = own.front().w1.data.data;
    block.images.down_bytes.data = own.front().w2.data.data;
    packed.push_back({.stored = {own.begin(), own.end()}, .images = block.images});
    for (ExpertWeights& expert : block.routed) {
      for (WeightView* w : {&expert.w1, &expert.w3, &expert.w2})
        for (ConstTensorView* view : {&w->data, &w->scale, &w->codebook}) view->data = nullptr;
    }
  }
  return packed;
}

void for_each_images(ModelWeights& weights, const std::function<void(ExpertImages&)>& visit) {
  for (LayerWeights* layer : all_layers(weights))
    if (!layer->moe.images.empty()) visit(layer->moe.images);
}

void for_each_tensor(const ModelConfig& config, ModelWeights& weights,
                     const std::function<void(ConstTensorView&)>& visit) {
  Walk walk(visit);
  visit_weights(config, weights, walk);
  for_each_images(weights, [&](ExpertImages& images) {
    if (!images.has_places()) visit(images.gate_up_bytes), visit(images.down_bytes);
    visit(images.scale2);
    if (!images.exponents.empty()) visit(images.exponents);
  });
}

}  // namespace dsv4
