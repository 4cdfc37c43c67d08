#include "dsv4/model/weights.h"

#include "dsv4/base/error.h"
#include "dsv4/formats/float16.h"

namespace dsv4 {
namespace {

class WeightLoader {
 public:
  WeightLoader(const Checkpoint& checkpoint, const ModelConfig& config, ModelWeights& weights)
      : checkpoint_(checkpoint), c_(config), weights_(weights) {}

  void run() {
    weights_.embed = floats("embed.weight", {c_.vocab_size, c_.hidden_size});
    weights_.head = checkpoint_.weight("head", c_.vocab_size, c_.hidden_size);
    weights_.norm = floats("norm.weight", {c_.hidden_size});
    weights_.hc_head = hyper("hc_head", c_.hc_mult, 1);
    const std::vector<LayerSpec> schedule = layer_schedule(c_);
    for (size_t l = 0; l < schedule.size(); ++l) {
      weights_.layers.push_back(layer(fmt::format("layers.{}.", l), schedule[l]));
    }
    for (const std::string& tensor : checkpoint_.unused()) {
      (tensor.rfind("mtp.", 0) == 0 ? weights_.skipped : weights_.unused).push_back(tensor);
    }
  }

 private:
  // A float tensor that the ops take in any float dtype.
  ConstTensorView floats(const std::string& name, std::initializer_list<int64_t> shape) {
    return checkpoint_.tensor(name, {DType::kF32, DType::kBF16, DType::kF16}, shape);
  }

  // A float tensor that the ops want in f32.
  ConstTensorView f32(const std::string& name, std::initializer_list<int64_t> shape) {
    const ConstTensorView stored = floats(name, shape);
    if (stored.dtype == DType::kF32) return stored;
    const Buffer& copy = weights_.widened.emplace_back(DType::kF32, shape);
    for (int64_t i = 0; i < stored.numel(); ++i) {
      const uint16_t code = stored.as<uint16_t>()[i];
      copy.as<float>()[i] = stored.dtype == DType::kBF16 ? bf16_to_f32(code) : f16_to_f32(code);
    }
    return copy;
  }

  HyperWeights hyper(const std::string& prefix, int64_t rows, int64_t scales) {
    return {.fn = f32(prefix + "_fn", {rows, c_.hc_mult * c_.hidden_size}),
            .base = f32(prefix + "_base", {rows}),
            .scale = f32(prefix + "_scale", {scales})};
  }

  LayerWeights layer(const std::string& at, const LayerSpec& spec) {
    const int64_t mixes = c_.hc_mult * (2 + c_.hc_mult);
    return {.hc_attn = hyper(at + "hc_attn", mixes, 3),
            .hc_ffn = hyper(at + "hc_ffn", mixes, 3),
            .attn_norm = floats(at + "attn_norm.weight", {c_.hidden_size}),
            .ffn_norm = floats(at + "ffn_norm.weight", {c_.hidden_size}),
            .attn = attention(at + "attn.", spec),
            .moe = moe(at + "ffn.", spec)};
  }

  AttentionWeights attention(const std::string& at, const LayerSpec& spec) {
    const int64_t heads_out = c_.num_heads * c_.head_dim, lora = c_.o_groups * c_.o_lora_rank;
    AttentionWeights w;
    w.wq_a = checkpoint_.weight(at + "wq_a", c_.q_lora_rank, c_.hidden_size);
    w.q_norm = floats(at + "q_norm.weight", {c_.q_lora_rank});
    w.wq_b = checkpoint_.weight(at + "wq_b", heads_out, c_.q_lora_rank);
    w.wkv = checkpoint_.weight(at + "wkv", c_.head_dim, c_.hidden_size);
    w.kv_norm = floats(at + "kv_norm.weight", {c_.head_dim});
    w.sink = f32(at + "attn_sink", {c_.num_heads});
    w.wo_a = output_weight(at + "wo_a", heads_out / c_.o_groups);
    w.wo_b = checkpoint_.weight(at + "wo_b", c_.hidden_size, lora);
    if (spec.kind != LayerKind::kSwa)
      w.compressor = compressor(at + "compressor.", spec, c_.head_dim);
    if (spec.kind == LayerKind::kCsa) {
      w.indexer.wq_b =
          checkpoint_.weight(at + "indexer.wq_b", c_.index_heads * c_.index_dim, c_.q_lora_rank);
      w.indexer.weights_proj =
          checkpoint_.weight(at + "indexer.weights_proj", c_.index_heads, c_.hidden_size);
      w.indexer.compressor = compressor(at + "indexer.compressor.", spec, c_.index_dim);
    }
    return w;
  }

  CompressorWeights compressor(const std::string& at, const LayerSpec& spec, int64_t width) {
    const int64_t columns = state_layout(spec, width).columns();
    return {.wkv = checkpoint_.weight(at + "wkv", columns, c_.hidden_size),
            .wgate = checkpoint_.weight(at + "wgate", columns, c_.hidden_size),
            .ape = f32(at + "ape", {spec.ratio, columns}),
            .norm = floats(at + "norm.weight", {width})};
  }

  MoeWeights moe(const std::string& at, const LayerSpec& spec) {
    MoeWeights w;
    w.gate = checkpoint_.weight(at + "gate", c_.num_experts, c_.hidden_size);
    if (spec.hash_routing) {
      w.tid2eid = hash_table(at + "gate.tid2eid");
    } else {
      w.bias = f32(at + "gate.bias", {c_.num_experts});
    }
    for (int64_t e = 0; e < c_.num_experts; ++e) {
      w.routed.push_back(expert(fmt::format("{}experts.{}.", at, e), c_.expert_dim));
    }
    w.shared.push_back(expert(at + "shared_experts.", c_.expert_dim * c_.shared_experts));
    return w;
  }

  // Checked here, once: a bad id would otherwise stop an answer half-way.
  ConstTensorView hash_table(const std::string& name) {
    const ConstTensorView table =
        checkpoint_.tensor(name, {DType::kI64, DType::kI32}, {c_.vocab_size, c_.experts_per_token});
    for (int64_t i = 0; i < table.numel(); ++i) {
      const int64_t expert =
          table.dtype == DType::kI64 ? table.as<int64_t>()[i] : table.as<int32_t>()[i];
      if (expert >= 0 && expert < c_.num_experts) continue;
      fail(ErrorCode::kBadInput, "{}: token {} is routed to expert {} of {}", name,
           i / c_.experts_per_token, expert, c_.num_experts);
    }
    return table;
  }

  // wo_a is applied group by group, so its scale blocks may not straddle two groups.
  WeightView output_weight(const std::string& name, int64_t inner) {
    const WeightView w = checkpoint_.weight(name, c_.o_groups * c_.o_lora_rank, inner);
    if (w.format == WeightFormat::kFp8Block && c_.o_groups > 1 &&
        c_.o_lora_rank % kFp8BlockSize != 0) {
      fail(ErrorCode::kUnsupported, "{}: FP8 blocks of {} rows do not fit groups of {} rows", name,
           kFp8BlockSize, c_.o_lora_rank);
    }
    return w;
  }

  ExpertWeights expert(const std::string& at, int64_t width) {
    return {.w1 = checkpoint_.weight(at + "w1", width, c_.hidden_size),
            .w3 = checkpoint_.weight(at + "w3", width, c_.hidden_size),
            .w2 = checkpoint_.weight(at + "w2", c_.hidden_size, width)};
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& c_;
  ModelWeights& weights_;
};

}  // namespace

ModelWeights load_weights(const Checkpoint& checkpoint, const ModelConfig& config) {
  ModelWeights weights;
  WeightLoader(checkpoint, config, weights).run();
  return weights;
}

}  // namespace dsv4
