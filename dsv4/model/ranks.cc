#include "dsv4/model/ranks.h"

#include <algorithm>

#include "dsv4/base/bits.h"
#include "dsv4/model/weight_table.h"
#include "dsv4/ops/model/embed/embed.h"
#include "dsv4/ops/model/moe/moe_hidden.h"
#include "dsv4/ops/parts/linear/projection.h"
#include "dsv4/ops/parts/quant/quant.h"

namespace dsv4 {
namespace {

TensorView columns_of(const TensorView& all, const ShardId& id, const ColumnEnds& ends) {
  return all.slice(1, first_column(ends, id.rank), ends[static_cast<size_t>(id.rank)]);
}

// Ends of the columns that stand for rows of a weight, cut by blocks.
ColumnEnds ends_of_blocks(const Step& step, int64_t n) {
  return column_ends(step.ranks->id().world, n, kByBlock.unit);
}

void gather(const Step& step, const TensorView& all, const ColumnEnds& ends, const Place& place) {
  const Gathered one[] = {{all, ends}};
  step.ranks->gather(one, place);
}

}  // namespace

ColumnEnds share_tokens(const Step& step, int64_t least) {
  // A rank with all tokens could take other kernels than those without.
  if (step.ranks == nullptr || step.num_tokens < std::max(least, kSharedTokensUnit + 1)) return {};
  return column_ends(step.ranks->id().world, step.num_tokens, kSharedTokensUnit);
}

int64_t tokens_of_largest_share(ShardId id, int64_t tokens) {
  const auto share = [&](int64_t t) { return id.rows(t, kSharedTokensUnit).count(); };
  const int64_t units = ceil_div(tokens, kSharedTokensUnit);
  int64_t best = tokens;
  // The share grows with every `world` units.
  for (int64_t u = units - 1; u > 0 && u > units - id.world; --u)
    if (share(u * kSharedTokensUnit) > share(best)) best = u * kSharedTokensUnit;
  return best;
}

ShardId::Rows own_tokens(const Step& step) {
  if (step.token_ends.empty()) return {0, step.num_tokens};
  const int rank = step.ranks->id().rank;
  return {first_column(step.token_ends, rank), step.token_ends[static_cast<size_t>(rank)]};
}

void gather_picks(const Step& step, const TensorView& picks) {
  gather_runs_of_rows(*step.ranks, picks, step.token_ends, {"gather picks", step.layer});
}

void embed_of_ranks(const Step& step, const ConstTensorView& table, const TensorView& streams) {
  const Scratch::Scope scope(step.scratch);
  const TensorView rows = step.scratch.take(step.act, {step.num_tokens, step.config.hidden_size});
  // Ids of others read a row of this rank, which the exchange replaces.
  if (table.dim(0) > 0)
    embed(step.context, {.ids = step.own.rows, .table = table, .out = rows.unsqueeze(1)});
  step.ranks->gather_rows(rows, step.own.owners, {"embedding"});
  // An embedding lookup copies a row into every stream.
  embed(step.context, {.ids = step.own.in_order, .table = rows, .out = streams});
}

void embed_rows_of_ranks(const Step& step, const ConstTensorView& table, const TensorView& out) {
  const ColumnEnds ends = ends_of_blocks(step, step.config.vocab_size);
  if (table.dim(0) > 0)
    embed(step.context, {.ids = step.ids,
                         .table = table,
                         .out = out.unsqueeze(1),
                         .first = first_column(ends, step.ranks->id().rank)});
  const Gathered rows[] = {{out, ends, step.ids}};
  step.ranks->gather(rows, {"embedding of a draft"});
}

namespace {

constexpr int64_t kQ8 = Projection::kActivationColumns;

// Whether u travels as the Q8 codes that its product takes, half the bytes, of which every rank
// makes its own: in steps of many tokens, whose exchanges are as long as their bytes.
bool travels_as_codes(const Step& step, const WeightView& wo_b) {
  return !step.token_ends.empty() && step.official() && wo_b.quantized_activations() &&
         step.config.o_lora_rank % kQ8 == 0;
}

// y = u w^T of own columns; of u the own ones are written. groups: ends of its columns
void product_of_codes(const Step& step, const TensorView& u, const ColumnEnds& groups,
                      const WeightView& w, const TensorView& y) {
  const ShardId id = step.ranks->id();
  const int64_t t = u.dim(0), k = u.dim(1);
  ColumnEnds blocks;
  for (const int64_t end : groups) blocks.push_back(end / kQ8);
  const TensorView codes = step.scratch.take(DType::kE4M3, {t, k});
  const TensorView scales = step.scratch.take(DType::kE8M0, {t, k / kQ8});
  if (const TensorView own = columns_of(u, id, groups); own.dim(1) > 0)
    quantize_q8(step.context, {.x = own,
                               .codes = columns_of(codes, id, groups),
                               .scales = columns_of(scales, id, blocks),
                               .group = kQ8});
  // One after the other: an exchange of both would move the codes in units of the few scales.
  gather(step, codes, groups, {"gather codes of u", step.layer});
  gather(step, scales, blocks, {"gather scales of u", step.layer});
  if (w.n > 0) linear(step.context, {.x = codes, .x_scale = scales, .weight = w, .out = y});
}

}  // namespace

void attention_out_of_ranks(const Step& step, const AttentionWeights& weights,
                            const ConstTensorView& o, const TensorView& y) {
  const Scratch::Scope scope(step.scratch);
  const ModelConfig& m = step.config;
  const ShardId id = step.ranks->id();
  const int64_t t = step.num_tokens;
  const TensorView u = step.scratch.take(step.act, {t, m.o_groups * m.o_lora_rank});
  const ColumnEnds groups = column_ends(id.world, m.o_groups, 1, m.o_lora_rank);
  if (weights.wo_a.n > 0) {
    linear(step.context, {.x = o.reshape({t, o.dim(1) * o.dim(2)}),
                          .weight = weights.wo_a,
                          .out = columns_of(u, id, groups),
                          .groups = weights.wo_a.n / m.o_lora_rank});
  }
  const ColumnEnds columns = ends_of_blocks(step, m.hidden_size);
  const TensorView own = columns_of(y, id, columns);
  if (travels_as_codes(step, weights.wo_b)) {
    product_of_codes(step, u, groups, weights.wo_b, own);
  } else {
    gather(step, u, groups, {"gather u", step.layer});
    const ProjectionScope codes(step.context);
    if (weights.wo_b.n > 0) Projection(step.context, u).into(weights.wo_b, own);
  }
  gather(step, y, columns, {"gather y of attention", step.layer});
}

namespace {

// What both halves of a block see.
struct Moe {
  const Step& step;
  const MoeWeights& weights;
  TensorView chosen;       // [t, k] I32
  TensorView h, shared_h;  // [t * k, I], [t, I of the shared expert]

  Moe(const Step& s, const MoeWeights& w) : step(s), weights(w) {
    const ModelConfig& m = s.config;
    const int64_t t = s.num_tokens, k = m.experts_per_token;
    chosen = s.scratch.take(DType::kI32, {t, k});
    h = s.scratch.take(s.act, {t * k, m.expert_dim});
    shared_h = s.scratch.take(s.act, {t, m.expert_dim * m.shared_experts});
  }

  // Router and first halves. hidden, shared_hidden: what this rank computes of h and shared_h
  FirstHalf run_hidden(const HcBoundaryArgs& boundary, const TensorView& hidden,
                       const TensorView& shared_hidden) const {
    const ModelConfig& m = step.config;
    FirstHalf first;
    moe_hidden(step.context, {.x = boundary.x,
                              .boundary = boundary,
                              .ids = step.ids,
                              .gate = weights.gate,
                              .bias = weights.bias,
                              .tid2eid = weights.tid2eid,
                              .routed = weights.stack(),
                              .shared = weights.shared,
                              .route_scale = m.route_scale,
                              .normalize = m.normalize_weights,
                              .swiglu_limit = m.swiglu_limit,
                              .chosen = chosen,
                              .hidden = hidden,
                              .shared_hidden = shared_hidden,
                              .first = &first});
    return first;
  }

  // y of the shared expert, which processes every token with weight 1: [t, rows of its w2]
  TensorView shared_y() const {
    const WeightView& w2 = weights.shared[0].w2;
    const TensorView y = step.scratch.take(step.act, {step.num_tokens, w2.n});
    const ProjectionScope codes(step.context);
    Projection(step.context, shared_h).into(w2, y);
    return y;
  }
};

// acc = y of own columns. Of few tokens, the product of the routed experts comes first and the sum
// last: then nothing stands between the exchange of h and a kernel that can read its weights while
// that waits.
void sum_of_slices(const Moe& block, const FirstHalf& first, const TensorView& acc) {
  const Step& step = block.step;
  ExpertsOutputArgs routed{
      .hidden = block.h, .stack = block.weights.stack(), .experts = block.chosen, .first = first};
  if (!step.token_ends.empty()) {
    routed.acc = acc, routed.add = false, routed.addend = block.shared_y();
    return experts_output(step.context, routed);
  }
  routed.rows = step.scratch.take(step.act, {block.h.dim(0), acc.dim(1)});
  experts_output(step.context, routed);
  experts_sum(step.context, {.rows = routed.rows,
                             .experts = block.chosen,
                             .num_experts = step.config.num_experts,
                             .acc = acc,
                             .add = false,
                             .addend = block.shared_y()});
}

void moe_of_slices(const Moe& block, const HcBoundaryArgs& boundary, const TensorView& acc) {
  const Step& step = block.step;
  const ShardId id = step.ranks->id();
  const ColumnEnds ends = ends_of_blocks(step, block.h.dim(1));
  const ColumnEnds shared_ends = ends_of_blocks(step, block.shared_h.dim(1));
  const FirstHalf first = block.run_hidden(boundary, columns_of(block.h, id, ends),
                                           columns_of(block.shared_h, id, shared_ends));
  const Gathered hidden[] = {{block.h, ends}, {block.shared_h, shared_ends}};
  step.ranks->gather(hidden, {"gather h", step.layer});
  const ColumnEnds columns = ends_of_blocks(step, step.config.hidden_size);
  if (const TensorView own = columns_of(acc, id, columns); own.dim(1) > 0)
    sum_of_slices(block, first, own);
  gather(step, acc, columns, {"gather y of experts", step.layer});
}

// One exchange: rows of y of own experts, and columns of h of the shared one. Every rank sums all.
void moe_of_whole_experts(const Moe& block, const HcBoundaryArgs& boundary, const TensorView& acc) {
  const Step& step = block.step;
  const ModelConfig& m = step.config;
  const ShardId id = step.ranks->id();
  const ExpertStack stack = block.weights.stack();
  const int64_t pairs = block.h.dim(0);
  const ColumnEnds shared_ends = ends_of_blocks(step, block.shared_h.dim(1));
  const ColumnEnds ids = column_ends(id.world, m.num_experts, 1);
  const FirstHalf first =
      block.run_hidden(boundary, block.h, columns_of(block.shared_h, id, shared_ends));
  const TensorView rows = step.scratch.take(step.act, {pairs, m.hidden_size});
  if (!stack.empty())
    experts_output(
        step.context,
        {.hidden = block.h, .stack = stack, .experts = block.chosen, .rows = rows, .first = first});
  const Gathered finished[] = {{rows, ids, block.chosen.reshape({pairs})},
                               {block.shared_h, shared_ends}};
  step.ranks->gather(finished, {"gather y of experts", step.layer});
  experts_sum(step.context, {.rows = rows,
                             .experts = block.chosen,
                             .num_experts = m.num_experts,
                             .acc = acc,
                             .add = false,
                             .addend = block.shared_y()});
}

}  // namespace

void moe_of_ranks(const Step& step, const MoeWeights& weights, const HcBoundaryArgs& boundary,
                  const TensorView& acc) {
  const Scratch::Scope scope(step.scratch);
  const Moe block(step, weights);
  weights.own ? moe_of_whole_experts(block, boundary, acc) : moe_of_slices(block, boundary, acc);
}

void head_of_ranks(const Step& step, const WeightView& head, const ConstTensorView& h,
                   const TensorView& logits) {
  const ShardId id = step.ranks->id();
  const ColumnEnds ends = ends_of_blocks(step, step.config.vocab_size);
  const bool root = id.rank == 0;
  const TensorView own =
      root ? columns_of(logits, id, ends) : step.scratch.take(DType::kF32, {h.dim(0), head.n});
  if (head.n > 0) linear(step.context, {.x = h, .weight = head, .out = own});
  step.ranks->to_root(own, logits, ends, {"logits"});
}

TensorView own_guess_logits(const Step& step, const TensorView& logits) {
  return columns_of(logits, step.ranks->id(), ends_of_blocks(step, step.config.vocab_size));
}

void gather_guess_logits(const Step& step, const TensorView& logits) {
  gather(step, logits, ends_of_blocks(step, step.config.vocab_size), {"logits of a draft"});
}

}  // namespace dsv4
