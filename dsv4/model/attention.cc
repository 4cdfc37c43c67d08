#include "dsv4/model/attention.h"

#include <algorithm>
#include <cmath>

#include "dsv4/model/ranks.h"
#include "dsv4/ops/model/attention_out/attention_out.h"
#include "dsv4/ops/model/index_select/index_select.h"
#include "dsv4/ops/model/sparse_mla/sparse_mla.h"

namespace dsv4 {
namespace {

// Indexer queries of some tokens, and weights of all; empty where every visible entry is attended
// to.
struct IndexQueries {
  ShardId::Rows tokens{0, 0};
  TensorView q, weights;  // [tokens, index_heads, index_dim], [T, index_heads]
};

AttentionInArgs input_args(const Step& step, const LayerSpec& spec, const AttentionWeights& weights,
                           const ConstTensorView& freqs, const LayerCache& cache,
                           const IndexQueries& index, const HcBoundaryArgs& boundary,
                           const TensorView& q) {
  AttentionInArgs args{.x = boundary.x,
                       .boundary = boundary,
                       .weights = weights,
                       .norm_eps = step.config.norm_eps,
                       .positions = step.positions,
                       .freqs = freqs,
                       .window = cache.window,
                       .window_rows = step.window().closed_rows,
                       .q = q,
                       .index_q = index.q,
                       .index_first = index.tokens.begin,
                       .index_weights = index.weights};
  if (spec.kind == LayerKind::kSwa) return args;
  const EntryLists& lists = step.groups[static_cast<size_t>(spec.group)];
  args.cu_tokens = step.cu_tokens;
  args.start = step.start;
  args.state_slots = step.state_slots;
  args.entry_rows = lists.closed_rows;
  args.entry_positions = lists.closed_positions;
  args.entries = cache.entries;
  args.state = cache.state;
  args.keys = cache.keys;
  args.index_state = cache.index_state;
  return args;
}

// Top-k entries of each query by indexer score (docs/spec/dsv4.md 6), in rows of its token.
// indices: [T, k]
void select_entries(const Step& step, const EntryLists& lists, const IndexPool& keys,
                    const IndexQueries& index, const TensorView& indices) {
  const ModelConfig& m = step.config;
  const auto own = [&](const auto& view) {
    return view.slice(0, index.tokens.begin, index.tokens.end);
  };
  index_select(step.context,
               {.q = index.q,
                .weights = own(index.weights),
                .weight_scale = 1.f / std::sqrt(static_cast<float>(m.index_dim * m.index_heads)),
                .keys = keys,
                .pages = lists.pages,
                .sequence = own(step.sequence),
                .visible = own(lists.visible),
                .max_visible = lists.max_visible,
                .indices = own(indices),
                // The step's lists are on the device before its first kernel, and keys that earlier
                // steps closed were there before.
                .settled = own(lists.settled)});
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

void run_attention(Step& step, const LayerSpec& spec, const AttentionWeights& weights,
                   const RopeTables& tables, const LayerCache& cache,
                   const HcBoundaryArgs& boundary, const TensorView& y) {
  const ModelConfig& m = step.config;
  const int64_t t = step.num_tokens;
  const ConstTensorView freqs = spec.kind == LayerKind::kSwa ? tables.raw : tables.compressed;
  const Scratch::Scope scope(step.scratch);
  const int64_t heads = weights.sink.dim(0);  // of this rank
  const TensorView q = step.activation({t, heads, m.head_dim});

  // With no more entries than the indexer may pick, it picks all of them whatever their scores;
  // none are visible before the first block closes.
  KvList compressed;
  const EntryLists* lists =
      spec.kind == LayerKind::kSwa ? nullptr : &step.groups[static_cast<size_t>(spec.group)];
  if (lists != nullptr && lists->max_visible > 0)
    compressed = {.pool = cache.entries, .indices = lists->all_rows, .early = true};
  const bool select = lists != nullptr && lists->max_visible > 0 && lists->all_rows.empty();
  const TensorView chosen =
      select ? step.scratch.take(DType::kI32, {t, m.index_topk}) : TensorView();
  {
    const Scratch::Scope index_scope(step.scratch);
    IndexQueries index;
    if (select) {
      const ShardId::Rows tokens = own_tokens(step);
      // Memory for all tokens, so that a step with shares takes no less than a smaller one without.
      index = {.tokens = tokens,
               .q = step.activation({t, m.index_heads, m.index_dim}).slice(0, 0, tokens.count()),
               .weights = step.activation({t, m.index_heads})};
    }
    attention_in(step.context, input_args(step, spec, weights, freqs, cache, index, boundary, q));
    if (select) select_entries(step, *lists, cache.keys, index, chosen);
    if (select && !step.token_ends.empty()) gather_picks(step, chosen);
  }
  if (select) compressed.indices = chosen, compressed.early = false;
  if (compressed.indices.rank > 0) compressed.indices = compressed.indices.unsqueeze(1);

  const TensorView o = step.activation({t, heads, m.head_dim});
  if (heads > 0)
    sparse_mla(
        step.context,
        {.q = q.unsqueeze(1),  // a request per token
         // The step's lists are on the device before its first kernel.
         .window = {.pool = cache.window,
                    .indices = step.window().all_rows.unsqueeze(1),
                    .early = true},
         .compressed = compressed,
         .sink = weights.sink,
         .scale = 1.f / std::sqrt(static_cast<float>(m.head_dim)),
         .inverse_rope = {.positions = step.positions.unsqueeze(1), .freqs = freqs, .early = true},
         .out = o.unsqueeze(1)});
  if (step.ranks != nullptr) return attention_out_of_ranks(step, weights, o, y);
  attention_out(step.context,
                {.o = o, .wo_a = weights.wo_a, .wo_b = weights.wo_b, .groups = m.o_groups, .y = y});
}

}  // namespace dsv4
