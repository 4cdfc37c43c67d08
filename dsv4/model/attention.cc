#include "dsv4/model/attention.h"

#include <algorithm>
#include <cmath>

#include "dsv4/model/projection.h"
#include "dsv4/ops/compressor/compressor.h"
#include "dsv4/ops/indexer/indexer.h"
#include "dsv4/ops/kv_insert/kv_insert.h"
#include "dsv4/ops/norm/norm.h"
#include "dsv4/ops/quant/quant.h"
#include "dsv4/ops/sparse_mla/sparse_mla.h"

namespace dsv4 {
namespace {

struct Layer {
  Step& step;
  const LayerSpec& spec;
  const AttentionWeights& w;
  ConstTensorView freqs;  // [rope_dim / 2] f32
  const LayerCache& cache;

  const EntryLists& entries() const { return step.groups[static_cast<size_t>(spec.group)]; }
  void rotate(const TensorView& x, const ConstTensorView& positions, bool inverse = false) const {
    rope(step.context, {.x = x, .positions = positions, .freqs = freqs, .inverse = inverse});
  }
};

// q-lora latent c (also the indexer's input): RMS(x wq_a; q_norm) -> [T, Q]
TensorView latent_query(const Layer& layer, Projection& x) {
  Step& step = layer.step;
  const TensorView c = step.activation({step.num_tokens, step.config.q_lora_rank});
  x.into(layer.w.wq_a, c);
  rms_norm(step.context, {.x = c, .weight = layer.w.q_norm, .out = c, .eps = step.config.norm_eps});
  return c;
}

// c -> [T, H, d], normalized per head and rotated.
TensorView queries(const Layer& layer, Projection& c) {
  Step& step = layer.step;
  const ModelConfig& m = step.config;
  const TensorView q = step.activation({step.num_tokens, m.num_heads, m.head_dim});
  c.into(layer.w.wq_b, q.reshape({step.num_tokens, m.num_heads * m.head_dim}));
  const TensorView heads = q.reshape({step.num_tokens * m.num_heads, m.head_dim});
  head_norm(step.context, {.x = heads, .out = heads, .eps = m.norm_eps});
  layer.rotate(q, step.positions);
  return q;
}

// Raw keys of this step (each both key and value) into the window cache.
void append_window(const Layer& layer, Projection& x) {
  Step& step = layer.step;
  const int64_t d = step.config.head_dim;
  const TensorView k = step.activation({step.num_tokens, d});
  x.into(layer.w.wkv, k);
  rms_norm(step.context,
           {.x = k, .weight = layer.w.kv_norm, .out = k, .eps = step.config.norm_eps});
  layer.rotate(k.reshape({step.num_tokens, 1, d}), step.positions);
  kv_insert(step.context, {.x = k, .rows = step.window().closed_rows, .pool = layer.cache.window});
}

// Pools the blocks that close in this step; normalized and rotated entries [n, width].
TensorView close_entries(const Layer& layer, const CompressorWeights& w, const StatePool& state,
                         Projection& x) {
  Step& step = layer.step;
  const StateLayout& layout = state.layout;
  const int width = layout.width;
  const int64_t closed = layer.entries().closed_rows.dim(0);
  const TensorView e = step.activation({closed, width});
  {
    const Scratch::Scope scope(step.scratch);
    const TensorView kv = step.scratch.take(DType::kF32, {step.num_tokens, layout.columns()});
    const TensorView gate = step.scratch.take(DType::kF32, {step.num_tokens, layout.columns()});
    x.plain(w.wkv, kv);
    x.plain(w.wgate, gate);
    compressor(step.context, {.layout = layout,
                              .kv = kv,
                              .gate = gate,
                              .ape = w.ape,
                              .cu_tokens = step.cu_tokens,
                              .start = step.start,
                              .state_slots = step.state_slots,
                              .state = state.slots,
                              .out = e});
  }
  if (closed == 0) return e;
  rms_norm(step.context, {.x = e, .weight = w.norm, .out = e, .eps = step.config.norm_eps});
  layer.rotate(e.reshape({closed, 1, width}), layer.entries().closed_positions);
  return e;
}

// Compressed entries and indexer keys are written BEFORE attention: the query that closes a block
// already sees it (docs/spec/dsv4.md 4.3).
void append_entries(const Layer& layer, Projection& x) {
  Step& step = layer.step;
  const ConstTensorView rows = layer.entries().closed_rows;
  const Scratch::Scope scope(step.scratch);
  const TensorView e = close_entries(layer, layer.w.compressor, layer.cache.state, x);
  if (rows.dim(0) > 0) kv_insert(step.context, {.x = e, .rows = rows, .pool = layer.cache.entries});
  if (layer.spec.kind != LayerKind::kCsa) return;
  const TensorView keys =
      close_entries(layer, layer.w.indexer.compressor, layer.cache.index_state, x);
  if (rows.dim(0) == 0) return;
  if (step.official()) hadamard(step.context, {.x = keys, .out = keys});
  index_insert(step.context, {.x = keys, .rows = rows, .pool = layer.cache.keys});
}

// Indexer queries: c -> [T, index_heads, index_dim]; rotated, and under official numerics on the
// Hadamard-transformed 4-bit grid that the keys are stored on.
TensorView index_queries(const Layer& layer, Projection& c) {
  Step& step = layer.step;
  const ModelConfig& m = step.config;
  const TensorView q = step.activation({step.num_tokens, m.index_heads, m.index_dim});
  c.into(layer.w.indexer.wq_b, q.reshape({step.num_tokens, m.index_heads * m.index_dim}));
  layer.rotate(q, step.positions);
  if (!step.official()) return q;
  const TensorView heads = q.reshape({step.num_tokens * m.index_heads, m.index_dim});
  hadamard(step.context, {.x = heads, .out = heads});
  fake_quant(
      step.context,
      {.x = heads, .out = heads, .format = FakeQuantFormat::kS4, .group = IndexLayoutFp4::kGroup});
  return q;
}

// The top-k entries of each query by indexer score -> [T, k] rows (docs/spec/dsv4.md 6).
TensorView select_entries(const Layer& layer, Projection& x, Projection& c) {
  Step& step = layer.step;
  const ModelConfig& m = step.config;
  const EntryLists& lists = layer.entries();
  const TensorView chosen = step.scratch.take(DType::kI32, {step.num_tokens, m.index_topk});
  const Scratch::Scope scope(step.scratch);
  const TensorView q = index_queries(layer, c);
  const TensorView weights = step.activation({step.num_tokens, m.index_heads});
  x.plain(layer.w.indexer.weights_proj, weights);
  const float factor = 1.f / std::sqrt(static_cast<float>(m.index_dim * m.index_heads));
  for (int64_t first = 0; first < step.num_tokens; first += kScoreTile) {
    const Scratch::Scope tile(step.scratch);
    const int64_t last = std::min(first + kScoreTile, step.num_tokens);
    const TensorView scores = step.scratch.take(DType::kF32, {last - first, lists.max_visible});
    const TensorView picks = chosen.slice(0, first, last);
    const ConstTensorView visible = lists.visible.slice(0, first, last);
    const ConstTensorView sequence = step.sequence.slice(0, first, last);
    index_scores(step.context, {.q = q.slice(0, first, last),
                                .weights = weights.slice(0, first, last),
                                .weight_scale = factor,
                                .keys = layer.cache.keys,
                                .pages = lists.pages,
                                .sequence = sequence,
                                .visible = visible,
                                .scores = scores});
    top_k(step.context, {.scores = scores,
                         .visible = visible,
                         .pages = lists.pages,
                         .sequence = sequence,
                         .page_entries = layer.cache.keys.page_entries,
                         .indices = picks});
  }
  return chosen;
}

// Which compressed entries the queries attend to; empty for SWA layers and before the first block
// closes.
KvList seen_entries(const Layer& layer, Projection& x, Projection& c) {
  if (layer.spec.kind == LayerKind::kSwa) return {};
  const EntryLists& lists = layer.entries();
  if (lists.max_visible == 0) return {};
  // With no more entries than the indexer may pick, it picks all of them whatever their scores.
  const bool all = !lists.all_rows.empty();
  return {.pool = layer.cache.entries,
          .indices =
              (all ? lists.all_rows : ConstTensorView(select_entries(layer, x, c))).unsqueeze(1)};
}

// Heads of a group side by side, low-rank per group (wo_a), then mixed (wo_b): o [T, H, d] -> out
// [T, D]
void project_output(const Layer& layer, const TensorView& o, const TensorView& out) {
  Step& step = layer.step;
  const ModelConfig& m = step.config;
  const TensorView flat = o.reshape({step.num_tokens, m.num_heads * m.head_dim});
  const TensorView u = step.activation({step.num_tokens, m.o_groups * m.o_lora_rank});
  linear(step.context, {.x = flat, .weight = layer.w.wo_a, .out = u, .groups = m.o_groups});
  Projection(step, u).into(layer.w.wo_b, out);
}

}  // namespace

RopeTables make_rope_tables(const ModelConfig& config, std::deque<Buffer>& owner) {
  const auto table = [&](double base, const YarnParams& yarn) -> ConstTensorView {
    const std::vector<float> freqs =
        rope_frequencies(static_cast<int>(config.rope_dim), base, yarn);
    const Buffer& buffer = owner.emplace_back(
        DType::kF32, std::initializer_list<int64_t>{static_cast<int64_t>(freqs.size())});
    std::copy(freqs.begin(), freqs.end(), buffer.as<float>());
    return buffer;
  };
  return {.raw = table(config.rope_theta, {}),
          .compressed = table(config.compress_rope_theta, config.yarn)};
}

TensorView attention(Step& step, const LayerSpec& spec, const AttentionWeights& weights,
                     const RopeTables& tables, const LayerCache& cache, const ConstTensorView& x) {
  const ModelConfig& m = step.config;
  const TensorView y = step.activation({step.num_tokens, m.hidden_size});
  const Scratch::Scope scope(step.scratch);
  const Layer layer{step, spec, weights, spec.ratio == 0 ? tables.raw : tables.compressed, cache};
  Projection from_x(step, x);
  const TensorView c = latent_query(layer, from_x);
  Projection from_c(step, c);
  const TensorView q = queries(layer, from_c);
  append_window(layer, from_x);
  if (spec.kind != LayerKind::kSwa) append_entries(layer, from_x);

  const TensorView o = step.activation({step.num_tokens, m.num_heads, m.head_dim});
  sparse_mla(step.context,
             {.q = q.unsqueeze(1),  // a request per token
              .window = {.pool = cache.window, .indices = step.window().all_rows.unsqueeze(1)},
              .compressed = seen_entries(layer, from_x, from_c),
              .sink = weights.sink,
              .scale = 1.f / std::sqrt(static_cast<float>(m.head_dim)),
              .out = o.unsqueeze(1)});
  layer.rotate(o, step.positions, /*inverse=*/true);
  project_output(layer, o, y);
  return y;
}

}  // namespace dsv4
