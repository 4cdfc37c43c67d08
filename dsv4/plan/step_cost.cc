#include "dsv4/plan/step_cost.h"

#include <algorithm>
#include <cmath>

#include "dsv4/base/bits.h"
#include "dsv4/engine/cache_plan.h"

namespace dsv4 {
namespace {

// Weights of the products of one token, and what they take.
struct Products {
  double values = 0, bytes = 0;
  void add(const WeightView& w) {
    if (w.empty()) return;
    values += static_cast<double>(w.n * w.k);
    bytes += static_cast<double>(w.bytes());
  }
  void add(const HyperWeights& w) {
    values += static_cast<double>(w.fn.numel());
    bytes += static_cast<double>(w.fn.bytes());
  }
  void add(const CompressorWeights& w) { add(w.wkv), add(w.wgate); }
  void add(const ExpertWeights& w) { add(w.w1), add(w.w3), add(w.w2); }
};

Products shared_products(const LayerWeights& layer) {
  Products sum;
  sum.add(layer.hc_attn), sum.add(layer.hc_ffn);
  const AttentionWeights& a = layer.attn;
  for (const WeightView* w : {&a.wq_a, &a.wq_b, &a.wkv, &a.wo_a, &a.wo_b, &a.indexer.wq_b,
                              &a.indexer.weights_proj, &layer.moe.gate})
    sum.add(*w);
  sum.add(a.compressor), sum.add(a.indexer.compressor);
  for (const ExpertWeights& expert : layer.moe.shared) sum.add(expert);
  return sum;
}

Products mean_expert(const LayerWeights& layer) {
  Products sum;
  for (const ExpertWeights& expert : layer.moe.routed) sum.add(expert);
  const auto count = static_cast<double>(std::max<size_t>(layer.moe.routed.size(), 1));
  return {.values = sum.values / count, .bytes = sum.bytes / count};
}

// Experts that `tokens` tokens are expected to choose, if all are equally likely.
double chosen_experts(const ModelConfig& m, double tokens) {
  const double share =
      static_cast<double>(m.experts_per_token) / static_cast<double>(m.num_experts);
  return static_cast<double>(m.num_experts) * (1 - std::pow(1 - share, tokens));
}

struct Attention {
  double rows = 0;  // attended to by a query at the end of the context
  double keys = 0;  // scored by the indexer
};
Attention attention_of(const ModelConfig& m, const LayerSpec& layer, int64_t context) {
  Attention a{.rows = static_cast<double>(std::min(m.window, context))};
  if (layer.kind == LayerKind::kSwa) return a;
  const bool has_index = layer.kind == LayerKind::kCsa;
  const int64_t entries = context / layer.ratio;
  a.rows += static_cast<double>(has_index ? std::min(entries, m.index_topk) : entries);
  if (has_index && entries > m.index_topk) a.keys = static_cast<double>(entries);
  return a;
}

// Weights and products of a step; attention and the head come apart.
StepCost layers_cost(const Model& model, double tokens) {
  const ModelConfig& m = model.config();
  StepCost cost;
  for (const LayerWeights& layer : model.weights().layers) {
    const Products shared = shared_products(layer), expert = mean_expert(layer);
    cost.weight_bytes += shared.bytes + chosen_experts(m, tokens) * expert.bytes;
    cost.flops +=
        2 * tokens * (shared.values + static_cast<double>(m.experts_per_token) * expert.values);
  }
  return cost;
}

void add_head(const Model& model, double rows, StepCost& cost) {
  Products head;
  head.add(model.weights().head);
  cost.weight_bytes += head.bytes;
  cost.flops += 2 * rows * head.values;
}

// Attention of `tokens` queries with one context: its flops, and the rows if each query reads its
// own.
void add_attention(const Model& model, Numerics numerics, double tokens, int64_t context,
                   StepCost& cost) {
  const ModelConfig& m = model.config();
  const KvLayout row = entry_layout(m);
  const bool packed = numerics == Numerics::kOfficial;
  const double row_bytes = packed ? static_cast<double>(row.row_bytes()) : 4.0 * row.width();
  const double key_bytes = packed ? static_cast<double>(key_layout(m).page_bytes(1))
                                  : 4.0 * static_cast<double>(m.index_dim);
  for (const LayerSpec& layer : model.schedule()) {
    const Attention a = attention_of(m, layer, context);
    cost.flops += tokens * (4.0 * static_cast<double>(m.num_heads * m.head_dim) * a.rows +
                            2.0 * static_cast<double>(m.index_heads * m.index_dim) * a.keys);
    cost.cache_bytes += tokens * (a.rows * row_bytes + a.keys * key_bytes);
  }
}

}  // namespace

StepCost decode_cost(const Model& model, Numerics numerics, int64_t tokens, int64_t context) {
  const auto t = static_cast<double>(tokens);
  StepCost cost = layers_cost(model, t);
  add_head(model, t, cost);
  add_attention(model, numerics, t, context, cost);
  return cost;
}

// The context that a chunk sees is taken in its middle.
StepCost prefill_cost(const Model& model, Numerics numerics, int64_t tokens, int64_t chunk) {
  StepCost cost;
  for (int64_t first = 0; first < tokens; first += chunk) {
    const int64_t count = std::min(chunk, tokens - first);
    StepCost step = layers_cost(model, static_cast<double>(count));
    add_attention(model, numerics, static_cast<double>(count), first + count / 2, step);
    cost.weight_bytes += step.weight_bytes;
    cost.cache_bytes += step.cache_bytes;
    cost.flops += step.flops;
  }
  add_head(model, 1, cost);
  return cost;
}

}  // namespace dsv4
