#include "dsv4/ops/xattn/prefill/xattn_prefill.h"

#include <algorithm>
#include "dsv4/base/error.h"

#include "dsv4/ops/xattn/scores/xattn_scores.h"
#include "dsv4/ops/xattn/select/xattn_select.h"
#include "dsv4/tensor/scratch.h"

namespace dsv4 {
namespace {

// A query block may start before its first query, so n queries touch one block more than they fill.
int64_t max_q_blocks(const XattnPrefillArgs& args) {
  return ceil_div(std::max<int64_t>(args.max_queries - 1, 0), args.block) + 1;
}
int64_t max_k_blocks(const XattnPrefillArgs& args) {
  return std::max<int64_t>(ceil_div(args.max_keys, args.block), 1);
}

bool is_dense(const XattnPrefillArgs& args) {
  return args.dense || (args.prompt_lengths.empty() && args.max_keys < args.min_length);
}

// Query heads begin .. end - 1 with their key heads.
XattnPrefillArgs heads_of(const XattnPrefillArgs& all, int64_t begin, int64_t end) {
  const int64_t group = all.q.dim(1) / all.k.dim(-2);
  XattnPrefillArgs args = all;
  args.q = all.q.slice(1, begin, end);
  args.out = all.out.slice(1, begin, end);
  args.tau = all.tau.slice(0, begin, end);
  if (!all.lse.empty()) args.lse = all.lse.slice(0, begin, end);
  args.k = all.k.slice(all.k.rank - 2, begin / group, end / group);
  args.v = all.v.slice(all.v.rank - 2, begin / group, end / group);
  return args;
}

BlockSparseAttentionArgs attention_args(const XattnPrefillArgs& args) {
  return {.batch = args.batch,
          .q = args.q,
          .k = args.k,
          .v = args.v,
          .page_table = args.page_table,
          .block = args.block,
          .lists = {},
          .max_q_blocks = max_q_blocks(args),
          .scale = args.scale,
          .out = args.out,
          .lse = args.lse};
}

// The three calls of a round of heads.
struct Round {
  XattnScoresArgs scores;
  XattnSelectArgs select;
  BlockSparseAttentionArgs attention;

  Round(const XattnPrefillArgs& args, Scratch& scratch) {
    const int64_t b = args.batch.size(), heads = args.q.dim(1);
    const int64_t rows = max_q_blocks(args), slots = max_k_blocks(args);
    const TensorView sums = scratch.take(DType::kF32, {b, heads, rows, slots});
    const TensorView counts = scratch.take(DType::kI32, {b, heads, rows});
    const TensorView indices = scratch.take(DType::kI32, {b, heads, rows, slots});
    scores = {.batch = args.batch,
              .q = args.q,
              .k = args.k,
              .page_table = args.page_table,
              .block = args.block,
              .stride = args.stride,
              .scale = args.scale / args.norm,
              .sums = sums};
    select = {.batch = args.batch,
              .block = args.block,
              .sums = sums,
              .tau = args.tau,
              .prompt_lengths = args.prompt_lengths,
              .min_length = args.min_length,
              .dense_tail = args.dense_tail,
              .lists = {.counts = counts, .indices = indices}};
    attention = attention_args(args);
    attention.lists = {.counts = counts, .indices = indices};
  }
};

// Query heads of a round.
int64_t heads_per_round(const XattnPrefillArgs& args) {
  const int64_t per_head =
      args.batch.size() * max_q_blocks(args) * (2 * max_k_blocks(args) + 1) * 4;
  const int64_t heads = args.q.dim(1), group = heads / args.k.dim(-2);
  const int64_t rounds = args.workspace_limit / std::max<int64_t>(per_head, 1) / group;
  return std::min(std::max<int64_t>(rounds, 1) * group, heads);
}

void run_parts(const Context& context, const XattnPrefillArgs& args) {
  if (is_dense(args)) return block_sparse_attention(context, attention_args(args));
  Scratch own;  // callers on the host may have no workspace
  const bool has_workspace = context.device != nullptr || context.workspace != nullptr;
  Scratch& scratch = has_workspace ? workspace(context) : own;
  const int64_t heads = args.q.dim(1), step = heads_per_round(args);
  for (int64_t begin = 0; begin < heads; begin += step) {
    const Scratch::Scope scope(scratch);
    const Round round(heads_of(args, begin, std::min(begin + step, heads)), scratch);
    xattn_scores(context, round.scores);
    xattn_select(context, round.select);
    block_sparse_attention(context, round.attention);
  }
}

constexpr Impl<XattnPrefillArgs> kXattnPrefill[] = {
#if DSV4_CUDA
    {"parts", Arch::kCuda, true, accept_all<XattnPrefillArgs>, run_parts},
#endif
    {"parts", Arch::kCpu, true, accept_all<XattnPrefillArgs>, run_parts},
};

// What the three ops do not check themselves.
void check(const XattnPrefillArgs& args) {
  DSV4_CHECK(args.q.rank == 3 && args.k.rank >= 3, "q {} and k {}", to_string(args.q),
             to_string(args.k));
  const int64_t heads = args.q.dim(1), kv_heads = args.k.dim(-2);
  DSV4_CHECK(kv_heads >= 1 && heads % kv_heads == 0,
             "{} query heads do not share {} key heads evenly", heads, kv_heads);
  expect("tau", args.tau, {DType::kF32}, {heads});
  DSV4_CHECK(args.max_queries > 0 && args.max_keys > 0, "max_queries={} and max_keys={}",
             args.max_queries, args.max_keys);
  DSV4_CHECK(args.norm > 0, "norm={}", args.norm);
  DSV4_CHECK(args.min_length >= 0 && args.dense_tail >= 0, "min_length={}, dense_tail={}",
             args.min_length, args.dense_tail);
}

Cost cost(const XattnPrefillArgs& args) {
  Cost cost = block_sparse_attention.cost(attention_args(args));
  if (!is_dense(args)) {
    const double share = 1.0 / static_cast<double>(args.stride);
    cost.flops *= 1 + share * static_cast<double>(args.q.dim(2)) /
                          static_cast<double>(args.q.dim(2) + args.v.dim(-1));
  }
  return cost;
}

}  // namespace

constinit const Op<XattnPrefillArgs> xattn_prefill{"xattn_prefill", kXattnPrefill, check, cost};

}  // namespace dsv4
