#include "dsv4/model/scratch_plan.h"

#include <algorithm>
#include <vector>

#include "dsv4/base/bits.h"
#include "dsv4/model/attention.h"
#include "dsv4/model/projection.h"
#include "dsv4/model/schedule.h"
#include "dsv4/tensor/scratch.h"

namespace dsv4 {
namespace {

// Uses the names of the functions that it mirrors.
class Walk {
 public:
  Walk(const ModelConfig& config, Numerics numerics, const StepLimits& limits)
      : m_(config),
        groups_(cache_groups(config)),
        official_(numerics == Numerics::kOfficial),
        limits_(limits) {
    t_ = std::min(limits.tokens, limits.sequences * limits.context);
    runs_ = std::min(limits.sequences, t_);
    rows_ = std::min(limits.logits_rows, t_);
  }

  ScratchPlan forward() {
    step();
    activation({t_, m_.hc_mult, m_.hidden_size});  // streams
    for (const LayerSpec& spec : layer_schedule(m_)) {
      hyper_connected([&] { attention(spec); });
      hyper_connected([&] { moe(); });
    }
    head();
    return {.lists = lists_.peak_bytes(),
            .activations = scratch_.peak_bytes(),
            .together = lists_.peak_bytes() + scratch_.peak_bytes()};
  }

 private:
  void take(DType dtype, std::initializer_list<int64_t> shape) { scratch_.take(dtype, shape); }
  void activation(std::initializer_list<int64_t> shape) {
    take(official_ ? DType::kBF16 : DType::kF32, shape);
  }
  void projection(int64_t rows, int64_t k) {
    if (!official_) return;
    take(DType::kE4M3, {rows, k});
    take(DType::kE8M0, {rows, ceil_div(k, Projection::kActivationColumns)});
  }
  int64_t visible(int ratio) const { return limits_.context / ratio; }
  // A run of c tokens closes at most ceil(c / r) entries: the total is largest when every run has
  // one token more than a multiple of r.
  int64_t closed(int ratio) const {
    return std::min(runs_ + (t_ - runs_) / ratio, runs_ * visible(ratio));
  }

  void list(std::initializer_list<int64_t> shape) { lists_.take(DType::kI32, shape); }

  void step() {
    for (const int64_t n : {t_, runs_, runs_, runs_ + 1}) list({n});  // ids, start, slots, cu
    for (const int64_t n : {t_, t_, rows_}) list({n});  // positions, sequence, logits_rows
    list({t_});                                         // window: closed_rows
    list({t_, std::min(m_.window, limits_.context)});   // all_rows
    for (size_t g = kWindowGroup + 1; g < groups_.size(); ++g) entries(groups_[g]);
  }

  void entries(const CacheGroupSpec& group) {
    const int64_t seen = visible(group.ratio);
    list({closed(group.ratio)});                                              // closed_rows
    list({closed(group.ratio)});                                              // closed_positions
    list({t_});                                                               // visible
    list({runs_, std::max<int64_t>(1, ceil_div(seen, group.page_entries))});  // pages
    if (!group.has_index || seen <= m_.index_topk) list({t_, seen});          // all_rows
  }

  template <class Block>
  void hyper_connected(const Block& block) {
    const Scratch::Scope scope(scratch_);
    activation({t_, m_.hidden_size});                 // x
    take(DType::kF32, {t_, m_.hc_mult});              // post
    take(DType::kF32, {t_, m_.hc_mult, m_.hc_mult});  // comb
    block();
  }

  void attention(const LayerSpec& spec) {
    activation({t_, m_.hidden_size});  // y
    const Scratch::Scope scope(scratch_);
    projection(t_, m_.hidden_size);               // from_x
    activation({t_, m_.q_lora_rank});             // c
    projection(t_, m_.q_lora_rank);               // from_c
    activation({t_, m_.num_heads, m_.head_dim});  // q
    activation({t_, m_.head_dim});                // k
    if (spec.kind != LayerKind::kSwa) append_entries(spec);
    activation({t_, m_.num_heads, m_.head_dim});  // o
    if (spec.kind == LayerKind::kCsa && visible(spec.ratio) > m_.index_topk)
      select_entries(spec.ratio);
    activation({t_, m_.o_groups * m_.o_lora_rank});  // u
    projection(t_, m_.o_groups * m_.o_lora_rank);
  }

  void append_entries(const LayerSpec& spec) {
    const Scratch::Scope scope(scratch_);
    close_entries(spec, m_.head_dim);
    if (spec.kind == LayerKind::kCsa) close_entries(spec, m_.index_dim);
  }

  void close_entries(const LayerSpec& spec, int64_t width) {
    activation({closed(spec.ratio), width});  // e
    const Scratch::Scope scope(scratch_);
    const int64_t columns = state_layout(spec, width).columns();
    take(DType::kF32, {t_, columns});  // kv
    take(DType::kF32, {t_, columns});  // gate
  }

  void select_entries(int ratio) {
    take(DType::kI32, {t_, m_.index_topk});  // chosen
    const Scratch::Scope scope(scratch_);
    activation({t_, m_.index_heads, m_.index_dim});                 // q
    activation({t_, m_.index_heads});                               // weights
    take(DType::kF32, {std::min(kScoreTile, t_), visible(ratio)});  // scores
  }

  void moe() {
    take(DType::kF32, {t_, m_.hidden_size});  // acc
    const Scratch::Scope scope(scratch_);
    take(DType::kF32, {t_, m_.num_experts});        // logits
    take(DType::kI32, {t_, m_.experts_per_token});  // chosen
    take(DType::kF32, {t_, m_.experts_per_token});  // share
    projection(t_, m_.hidden_size);
  }

  void head() {
    if (rows_ == 0) return;
    activation({rows_, m_.hc_mult, m_.hidden_size});  // chosen
    activation({rows_, m_.hidden_size});              // h
    projection(rows_, m_.hidden_size);
  }

  const ModelConfig& m_;
  const std::vector<CacheGroupSpec> groups_;
  const bool official_;
  const StepLimits limits_;
  int64_t t_ = 0, runs_ = 0, rows_ = 0;
  Scratch lists_ = Scratch::counting(), scratch_ = Scratch::counting();
};

}  // namespace

ScratchPlan forward_scratch(const ModelConfig& config, Numerics numerics,
                            const StepLimits& limits) {
  ScratchPlan plan = Walk(config, numerics, limits).forward();
  // While the indexer would select every entry, all of them are listed instead, which can take more
  // memory than the longest context does.
  for (const CacheGroupSpec& group : cache_groups(config)) {
    if (!group.has_index) continue;
    StepLimits listed = limits;
    listed.context = std::min(limits.context, group.ratio * config.index_topk + group.ratio - 1);
    if (listed.context == limits.context) continue;
    const ScratchPlan all = Walk(config, numerics, listed).forward();
    plan = {.lists = std::max(plan.lists, all.lists),
            .activations = std::max(plan.activations, all.activations),
            .together = std::max(plan.together, all.together)};
  }
  return plan;
}

}  // namespace dsv4
