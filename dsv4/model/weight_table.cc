#include "dsv4/model/weight_table.h"

#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

constexpr Cut kWhole{};

class WeightTable {
 public:
  WeightTable(const ModelConfig& config, WeightVisitor& visitor) : c_(config), v_(visitor) {}

  void model(ModelWeights& w) {
    const std::vector<LayerSpec> schedule = layer_schedule(c_);
    w.layers.resize(schedule.size());
    const int64_t v = c_.vocab_size, d = c_.hidden_size;
    v_.floats(w.embed, {"embed", WeightPart::kEmbed, {}, Stored::kBF16, kByBlock}, {v, d});
    for (size_t l = 0; l < schedule.size(); ++l)
      layer(w.layers[l], fmt::format("layers.{}.", l), schedule[l]);
    if (w.drafter) drafter(*w.drafter);
    hyper(w.hc_head, "hc_head", c_.hc_mult, 1);
    norm(w.norm, "norm", WeightPart::kNorms, d);
    v_.matrix(w.head, {"head", WeightPart::kHead, {}, Stored::kBF16, kByBlock}, v, d);
  }

  void drafter(DrafterWeights& w) {
    const bool dspark = w.kind == DrafterKind::kDspark;
    w.layers.resize(static_cast<size_t>(drafter_blocks(c_, w.kind)));
    const auto at = [](size_t block) { return fmt::format("mtp.{}.", block); };
    if (dspark) taps(w, at(0));
    for (size_t block = 0; block < w.layers.size(); ++block) layer(w.layers[block], at(block), {});
    const std::string last = at(w.layers.size() - 1);
    if (!dspark) streams(w, last);
    norm(w.norm, last + "norm", WeightPart::kNorms, c_.hidden_size);
    hyper(w.hc_head, last + "hc_head", c_.hc_mult, 1);
    if (dspark) markov(w, last);
  }

 private:
  void streams(DrafterWeights& w, const std::string& at) {
    const int64_t d = c_.hidden_size;
    matrix(w.e_proj, at, "e_proj", WeightPart::kDrafter, Stored::kFp8, kWhole, d, d);
    matrix(w.h_proj, at, "h_proj", WeightPart::kDrafter, Stored::kFp8, kWhole, d, d);
    norm(w.enorm, at + "enorm", WeightPart::kNorms, d);
    norm(w.hnorm, at + "hnorm", WeightPart::kNorms, d);
  }
  void taps(DrafterWeights& w, const std::string& at) {
    const int64_t d = c_.hidden_size;
    matrix(w.main_proj, at, "main_proj", WeightPart::kDrafter, Stored::kFp8, kWhole, d,
           std::ssize(c_.dspark.taps) * d);
    norm(w.main_norm, at + "main_norm", WeightPart::kNorms, d);
  }
  void markov(DrafterWeights& w, const std::string& at) {
    const int64_t v = c_.vocab_size, r = c_.dspark.markov_rank;
    v_.floats(w.markov_w1, {at + "markov_head.markov_w1", WeightPart::kOther}, {v, r});
    v_.matrix(w.markov_w2, {at + "markov_head.markov_w2", WeightPart::kOther}, v, r);
    v_.floats(w.confidence, {at + "confidence_head.proj", WeightPart::kOther},
              {1, c_.hidden_size + r});
  }
  void matrix(WeightView& w, const std::string& at, std::string_view leaf, WeightPart part,
              Stored stored, Cut cut, int64_t n, int64_t k, int64_t expert = -1) {
    v_.matrix(w, {at + std::string(leaf), part, leaf, stored, cut, expert}, n, k);
  }
  void norm(ConstTensorView& view, const std::string& name, WeightPart part, int64_t width) {
    v_.floats(view, {name, part, {}, Stored::kBF16, kWhole}, {width});
  }
  void vector(ConstTensorView& view, const std::string& name, WeightPart part,
              std::initializer_list<int64_t> shape, Cut cut = kWhole) {
    v_.f32(view, {name, part, {}, Stored::kF32, cut}, shape);
  }

  void hyper(HyperWeights& w, const std::string& prefix, int64_t rows, int64_t scales) {
    vector(w.fn, prefix + "_fn", WeightPart::kHyper, {rows, c_.hc_mult * c_.hidden_size});
    vector(w.base, prefix + "_base", WeightPart::kHyper, {rows});
    vector(w.scale, prefix + "_scale", WeightPart::kHyper, {scales});
  }

  void layer(LayerWeights& w, const std::string& at, const LayerSpec& spec) {
    const int64_t mixes = c_.hc_mult * (2 + c_.hc_mult), d = c_.hidden_size;
    hyper(w.hc_attn, at + "hc_attn", mixes, 3);
    norm(w.attn_norm, at + "attn_norm", WeightPart::kNorms, d);
    attention(w.attn, at + "attn.", spec);
    hyper(w.hc_ffn, at + "hc_ffn", mixes, 3);
    norm(w.ffn_norm, at + "ffn_norm", WeightPart::kNorms, d);
    moe(w.moe, at + "ffn.", spec);
  }

  void attention(AttentionWeights& w, const std::string& at, const LayerSpec& spec) {
    constexpr auto kPart = WeightPart::kAttention;
    const int64_t d = c_.hidden_size, q = c_.q_lora_rank, g = c_.o_groups, r = c_.o_lora_rank;
    const int64_t heads_out = c_.num_heads * c_.head_dim;
    const Cut heads{heads_out / g};  // the heads of one group of wo_a
    matrix(w.wq_a, at, "wq_a", kPart, Stored::kFp8, kWhole, q, d);
    norm(w.q_norm, at + "q_norm", WeightPart::kNorms, q);
    matrix(w.wq_b, at, "wq_b", kPart, Stored::kFp8, heads, heads_out, q);
    matrix(w.wkv, at, "wkv", kPart, Stored::kFp8, kWhole, c_.head_dim, d);
    norm(w.kv_norm, at + "kv_norm", WeightPart::kNorms, c_.head_dim);
    if (spec.kind != LayerKind::kSwa)
      compressor(w.compressor, at + "compressor.", spec, c_.head_dim);
    if (spec.kind == LayerKind::kCsa) indexer(w.indexer, at + "indexer.", spec);
    vector(w.sink, at + "attn_sink", kPart, {c_.num_heads}, {c_.num_heads / g});
    v_.grouped(w.wo_a, {at + "wo_a", kPart, "wo_a", Stored::kFp8, {r}}, g * r, heads_out / g, g);
    matrix(w.wo_b, at, "wo_b", kPart, Stored::kFp8, kByBlock, d, g * r);
  }

  void indexer(IndexerWeights& w, const std::string& at, const LayerSpec& spec) {
    constexpr auto kPart = WeightPart::kIndexer;
    compressor(w.compressor, at + "compressor.", spec, c_.index_dim);
    matrix(w.wq_b, at, "wq_b", kPart, Stored::kFp8, kWhole, c_.index_heads * c_.index_dim,
           c_.q_lora_rank);
    matrix(w.weights_proj, at, "weights_proj", kPart, Stored::kBF16, kWhole, c_.index_heads,
           c_.hidden_size);
  }

  void compressor(CompressorWeights& w, const std::string& at, const LayerSpec& spec,
                  int64_t width) {
    constexpr auto kPart = WeightPart::kCompressor;
    const int64_t columns = state_layout(spec, width).columns();
    matrix(w.wkv, at, "wkv", kPart, Stored::kBF16, kWhole, columns, c_.hidden_size);
    matrix(w.wgate, at, "wgate", kPart, Stored::kBF16, kWhole, columns, c_.hidden_size);
    vector(w.ape, at + "ape", kPart, {spec.ratio, columns});
    norm(w.norm, at + "norm", kPart, width);
  }

  void moe(MoeWeights& w, const std::string& at, const LayerSpec& spec) {
    constexpr auto kPart = WeightPart::kRouter;
    v_.matrix(w.gate, {at + "gate", kPart, {}, Stored::kBF16, kWhole}, c_.num_experts,
              c_.hidden_size);
    if (spec.hash_routing) {
      v_.expert_ids(w.tid2eid, {at + "gate.tid2eid", kPart, {}, Stored::kI64, kWhole},
                    {c_.vocab_size, c_.experts_per_token});
    } else {
      vector(w.bias, at + "gate.bias", kPart, {c_.num_experts});
    }
    w.routed.resize(static_cast<size_t>(c_.num_experts));
    for (int64_t e = 0; e < c_.num_experts; ++e)
      routed_expert(w.routed[static_cast<size_t>(e)], fmt::format("{}experts.{}.", at, e), e);
    w.shared.resize(1);
    shared_expert(w.shared[0], at + "shared_experts.");
  }

  void routed_expert(ExpertWeights& w, const std::string& at, int64_t e) {
    constexpr auto kPart = WeightPart::kExperts;
    constexpr Cut kCut{kByBlock.unit, Cut::IfWhole::kOfOwner};
    const int64_t d = c_.hidden_size, width = c_.expert_dim;
    matrix(w.w1, at, "w1", kPart, Stored::kMxfp4, kCut, width, d, e);
    matrix(w.w3, at, "w3", kPart, Stored::kMxfp4, kCut, width, d, e);
    matrix(w.w2, at, "w2", kPart, Stored::kMxfp4, kCut, d, width, e);
  }

  // Whole on every rank, w2 needs no exchange of its own after it.
  void shared_expert(ExpertWeights& w, const std::string& at) {
    constexpr auto kPart = WeightPart::kSharedExperts;
    constexpr Cut kOfW2{kByBlock.unit, Cut::IfWhole::kEverywhere};
    const int64_t d = c_.hidden_size, width = c_.expert_dim * c_.shared_experts;
    matrix(w.w1, at, "w1", kPart, Stored::kFp8, kByBlock, width, d);
    matrix(w.w3, at, "w3", kPart, Stored::kFp8, kByBlock, width, d);
    matrix(w.w2, at, "w2", kPart, Stored::kFp8, kOfW2, d, width);
  }

  const ModelConfig& c_;
  WeightVisitor& v_;
};

class Names final : public WeightVisitor {
 public:
  explicit Names(std::map<const std::byte*, std::string>& names) : names_(names) {}

  void matrix(WeightView& weight, const WeightSpec& spec, int64_t, int64_t) override {
    names_.emplace(weight.data.data, spec.name + ".weight");
  }
  void grouped(WeightView& weight, const WeightSpec& spec, int64_t n, int64_t k, int64_t) override {
    matrix(weight, spec, n, k);
  }
  void floats(ConstTensorView& view, const WeightSpec& spec,
              std::initializer_list<int64_t>) override {
    names_.emplace(view.data, spec.name + ".weight");
  }
  void f32(ConstTensorView& view, const WeightSpec& spec, std::initializer_list<int64_t>) override {
    names_.emplace(view.data, spec.name);
  }
  void expert_ids(ConstTensorView& view, const WeightSpec& spec,
                  std::initializer_list<int64_t>) override {
    names_.emplace(view.data, spec.name);
  }

 private:
  std::map<const std::byte*, std::string>& names_;
};

}  // namespace

const char* name(WeightPart part) {
  switch (part) {
    case WeightPart::kExperts:
      return "experts";
    case WeightPart::kSharedExperts:
      return "shared_experts";
    case WeightPart::kAttention:
      return "attn";
    case WeightPart::kIndexer:
      return "indexer";
    case WeightPart::kCompressor:
      return "compressor";
    case WeightPart::kRouter:
      return "gate";
    case WeightPart::kDrafter:
      return "mtp";
    case WeightPart::kHead:
      return "head";
    case WeightPart::kEmbed:
      return "embed";
    case WeightPart::kOther:
      return "other";
    case WeightPart::kHyper:
      return "hc";
    case WeightPart::kNorms:
      return "norms";
  }
  return "other";
}

void visit_weights(const ModelConfig& config, ModelWeights& weights, WeightVisitor& visitor) {
  WeightTable(config, visitor).model(weights);
}

void visit_drafter(const ModelConfig& config, DrafterWeights& weights, WeightVisitor& visitor) {
  WeightTable(config, visitor).drafter(weights);
}

std::map<const std::byte*, std::string> names_by_address(const ModelConfig& config,
                                                         const ModelWeights& weights) {
  std::map<const std::byte*, std::string> names;
  Names visitor(names);
  // The visitor reads, and visit_weights() resizes nothing in a model that is loaded.
  visit_weights(config, const_cast<ModelWeights&>(weights), visitor);
  return names;
}

}  // namespace dsv4
