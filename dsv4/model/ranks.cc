#include "dsv4/model/ranks.h"

#include <algorithm>

#include "dsv4/base/bits.h"
#include "dsv4/model/weight_table.h"
#include "dsv4/ops/model/embed/embed.h"
#include "dsv4/ops/model/moe/moe_hidden.h"
#include "dsv4/ops/model/moe/moe_output.h"
#include "dsv4/ops/parts/linear/projection.h"
#include "dsv4/ops/parts/quant/quant.h"

namespace dsv4 {
namespace {

// Null for a step of few tokens, whose exchanges are shorter by words (comm/exchange_words.cuh).
SymmetricMemory* symmetric_memory(const Step& step) {
  return step.token_ends.empty() ? nullptr : step.ranks->symmetric();
}

TensorView columns_of(const TensorView& all, const ShardId& id, const ColumnEnds& ends) {
  return all.slice(1, first_column(ends, id.rank), ends[static_cast<size_t>(id.rank)]);
}

// Runs an op, and has it store what it computes on all ranks, if an implementation can. Whether one
// did: Gathered::stored.
template <class Args>
bool run_mirrored(const Step& step, const Op<Args>& op, Args args) {
  SymmetricMemory* const memory = symmetric_memory(step);
  if (memory != nullptr) args.mirrors = memory->mirrors;
  const bool stored = !args.mirrors.empty() && accepts(op, step.context, args);
  if (!stored) args.mirrors = {};
  op(step.context, args);
  return stored;
}

// Runs an op that computes an output. Of one that stays, nothing is moved.
template <class Args>
bool run_stored(const Step& step, const Op<Args>& op, const Args& args) {
  if (step.outputs != Outputs::kStay) return run_mirrored(step, op, args);
  op(step.context, args);
  return true;
}

// Ends of the columns that stand for rows of a weight, cut by blocks.
ColumnEnds ends_of_blocks(const Step& step, int64_t n) {
  return column_ends(step.ranks->id().world, n, kByBlock.unit);
}

void gather(const Step& step, const TensorView& all, const ColumnEnds& ends, const Place& place,
            bool stored = false, bool stays = false) {
  const Gathered one[] = {{.all = all, .ends = ends, .stored = stored, .stays = stays}};
  step.ranks->gather(one, place);
}

// The end of a block. stored: Gathered::stored
void give_output(const Step& step, const TensorView& y, const ColumnEnds& ends, const Place& place,
                 bool stored = false) {
  if (step.outputs != Outputs::kByBoundary)
    gather(step, y, ends, place, stored, step.outputs == Outputs::kStay);
}

}  // namespace

Scratch& exchanged_scratch(const Step& step, SymmetricHalf half) {
  SymmetricMemory* const memory = symmetric_memory(step);
  return memory == nullptr ? step.scratch : memory->half(half);
}

// Ranks with whole experts sum all columns themselves.
bool outputs_need_no_gather(const Step& step, const MoeWeights& weights) {
  if (step.ranks == nullptr || weights.own) return false;
  const SymmetricMemory* const memory = symmetric_memory(step);
  return step.token_ends.empty() || (memory != nullptr && !memory->mirrors.empty());
}

ColumnHomes homes_of_output(const Step& step) {
  const ShardId id = step.ranks->id();
  const ColumnEnds ends = ends_of_blocks(step, step.config.hidden_size);
  const Mirrors mirrors = step.ranks->symmetric()->mirrors;  // in order of the other ranks
  ColumnHomes homes{.count = id.world};
  for (int r = 0, other = 0; r < id.world; ++r) {
    homes.end[r] = static_cast<int32_t>(ends[static_cast<size_t>(r)]);
    homes.distance[r] = r == id.rank ? 0 : mirrors.distance[other++];
  }
  return homes;
}

PeerWords words_of_output(const Step& step, const TensorView& y) {
  return step.ranks->inside(y, ends_of_blocks(step, step.config.hidden_size),
                            {"gather y in a boundary", step.layer});
}

void gather_output(const Step& step, const TensorView& y) {
  gather(step, y, ends_of_blocks(step, step.config.hidden_size), {"gather the last output"});
}

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
  Scratch& scratch = exchanged_scratch(step, SymmetricHalf::kInner);
  const Scratch::Scope scope(scratch);
  const TensorView codes = scratch.take(DType::kE4M3, {t, k});
  const TensorView scales = scratch.take(DType::kE8M0, {t, k / kQ8});
  bool stored = true;  // a rank without columns has nothing to store
  if (const TensorView own = columns_of(u, id, groups); own.dim(1) > 0)
    stored = run_mirrored(step, quantize_q8,
                          {.x = own,
                           .codes = columns_of(codes, id, groups),
                           .scales = columns_of(scales, id, blocks),
                           .group = kQ8});
  if (symmetric_memory(step) != nullptr) {
    const Gathered both[] = {{.all = codes, .ends = groups, .stored = stored},
                             {.all = scales, .ends = blocks, .stored = stored}};
    step.ranks->gather(both, {"gather codes of u", step.layer});
  } else {
    // One after the other: an exchange of both would move the codes in units of the few scales.
    gather(step, codes, groups, {"gather codes of u", step.layer});
    gather(step, scales, blocks, {"gather scales of u", step.layer});
  }
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
  give_output(step, y, columns, {"gather y of attention", step.layer});
}

namespace {

// What both halves of a block see.
struct Moe {
  const Step& step;
  const MoeWeights& weights;
  TensorView logits, chosen;  // [t, e] f32, [t, k] I32
  TensorView h, shared_h;     // [t * k, I], [t, I of the shared expert]

  // hidden: where h and shared_h are taken
  Moe(const Step& s, const MoeWeights& w, Scratch& hidden) : step(s), weights(w) {
    const ModelConfig& m = s.config;
    const int64_t t = s.num_tokens, k = m.experts_per_token;
    logits = s.scratch.take(DType::kF32, {t, m.num_experts});
    chosen = s.scratch.take(DType::kI32, {t, k});
    h = hidden.take(s.act, {t * k, m.expert_dim});
    shared_h = hidden.take(s.act, {t, m.expert_dim * m.shared_experts});
  }

  // Router and first halves. hidden, shared_hidden: what this rank computes of h and shared_h
  MoeHiddenArgs hidden_args(const HcBoundaryArgs& boundary, const TensorView& hidden,
                            const TensorView& shared_hidden, FirstHalf& first) const {
    const ModelConfig& m = step.config;
    return {.x = boundary.x,
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
            .logits = logits,
            .chosen = chosen,
            .hidden = hidden,
            .shared_hidden = shared_hidden,
            .first = &first};
  }

  // acc: what this rank computes of y
  MoeOutputArgs output_args(const FirstHalf& first, const TensorView& acc) const {
    return {.hidden = h,
            .shared_hidden = shared_h,
            .chosen = chosen,
            .logits = logits,
            .ids = step.ids,
            .bias = weights.bias,
            .tid2eid = weights.tid2eid,
            .routed = weights.stack(),
            .shared = weights.shared,
            .acc = acc,
            .first = first};
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

void moe_of_slices(const Step& step, const MoeWeights& weights, const HcBoundaryArgs& boundary,
                   const TensorView& acc) {
  Scratch& inner = exchanged_scratch(step, SymmetricHalf::kInner);
  const Scratch::Scope scope(inner);
  const Moe block(step, weights, inner);
  const ShardId id = step.ranks->id();
  const ColumnEnds ends = ends_of_blocks(step, block.h.dim(1));
  const ColumnEnds shared_ends = ends_of_blocks(step, block.shared_h.dim(1));
  FirstHalf first{.keep = &step.scratch};
  const bool stored =
      run_mirrored(step, moe_hidden,
                   block.hidden_args(boundary, columns_of(block.h, id, ends),
                                     columns_of(block.shared_h, id, shared_ends), first));
  const Gathered hidden[] = {{.all = block.h, .ends = ends, .stored = stored},
                             {.all = block.shared_h, .ends = shared_ends, .stored = stored}};
  step.ranks->gather(hidden, {"gather h", step.layer});
  const ColumnEnds columns = ends_of_blocks(step, step.config.hidden_size);
  bool summed = true;  // a rank without columns has nothing to store
  if (const TensorView own = columns_of(acc, id, columns); own.dim(1) > 0)
    summed = run_stored(step, moe_output, block.output_args(first, own));
  give_output(step, acc, columns, {"gather y of experts", step.layer}, summed);
}

// One exchange: rows of y of own experts, and columns of h of the shared one. Every rank sums all.
void moe_of_whole_experts(const Step& step, const MoeWeights& weights,
                          const HcBoundaryArgs& boundary, const TensorView& acc) {
  const Moe block(step, weights, step.scratch);
  const ModelConfig& m = step.config;
  const ShardId id = step.ranks->id();
  const ExpertStack stack = block.weights.stack();
  const int64_t pairs = block.h.dim(0);
  const ColumnEnds shared_ends = ends_of_blocks(step, block.shared_h.dim(1));
  const ColumnEnds ids = column_ends(id.world, m.num_experts, 1);
  FirstHalf first{.keep = &step.scratch};
  moe_hidden(step.context, block.hidden_args(boundary, block.h,
                                             columns_of(block.shared_h, id, shared_ends), first));
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
  weights.own ? moe_of_whole_experts(step, weights, boundary, acc)
              : moe_of_slices(step, weights, boundary, acc);
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
