#include "dsv4/model/scratch_plan.h"

#include <algorithm>
#include <limits>

#include "dsv4/base/bits.h"
#include "dsv4/model/attention.h"
#include "dsv4/model/projection.h"
#include "dsv4/model/schedule.h"
#include "dsv4/tensor/scratch.h"

namespace dsv4 {
namespace {

// Names as in the functions that it walks beside.
class Walk {
 public:
  Walk(const ModelConfig& config, Numerics numerics, const StepLimits& limits)
      : m_(config), official_(numerics == Numerics::kOfficial), limits_(limits) {
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
  bool has(int ratio) const {
    return std::find(m_.ratios.begin(), m_.ratios.end(), ratio) != m_.ratios.end();
  }
  int64_t visible(int ratio) const { return limits_.context / ratio; }
  // A run of c tokens closes at most ceil(c / r) entries: most when every run has one token more
  // than whole blocks.
  int64_t closed(int ratio) const {
    return std::min(runs_ + (t_ - runs_) / ratio, runs_ * visible(ratio));
  }

  void list(std::initializer_list<int64_t> shape) { lists_.take(DType::kI32, shape); }

  void step() {
    for (const int64_t n : {t_, runs_, runs_, runs_ + 1}) list({n});  // ids, start, slots, cu
    for (const int64_t n : {t_, t_, rows_}) list({n});  // positions, sequence, logits_rows
    list({t_});                                         // window_new
    list({t_, std::min(m_.window, limits_.context)});   // window_seen
    if (has(4)) entries(4, limits_.csa_page_entries, m_.index_topk);
    if (has(128)) entries(128, limits_.hca_page_entries, std::numeric_limits<int64_t>::max());
  }

  void entries(int ratio, int page_entries, int64_t most) {
    list({closed(ratio)});                                                        // rows
    list({closed(ratio)});                                                        // positions
    list({t_});                                                                   // visible
    list({runs_, std::max<int64_t>(1, ceil_div(visible(ratio), page_entries))});  // pages
    if (visible(ratio) <= most) list({t_, visible(ratio)});                       // all
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
    if (spec.kind == LayerKind::kCsa && visible(4) > m_.index_topk) select_entries();
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

  void select_entries() {
    take(DType::kI32, {t_, m_.index_topk});  // chosen
    const Scratch::Scope scope(scratch_);
    activation({t_, m_.index_heads, m_.index_dim});             // q
    activation({t_, m_.index_heads});                           // weights
    take(DType::kF32, {std::min(kScoreTile, t_), visible(4)});  // scores
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
  const bool official_;
  const StepLimits limits_;
  int64_t t_ = 0, runs_ = 0, rows_ = 0;
  Scratch lists_ = Scratch::counting(), scratch_ = Scratch::counting();
};

}  // namespace

ScratchPlan forward_scratch(const ModelConfig& config, Numerics numerics,
                            const StepLimits& limits) {
  const ScratchPlan plan = Walk(config, numerics, limits).forward();
  // While the indexer may pick every entry they are all listed instead, which can take more than
  // the longest context does.
  StepLimits listed = limits;
  listed.context = std::min(limits.context, 4 * config.index_topk + 3);
  if (listed.context == limits.context) return plan;
  const ScratchPlan all = Walk(config, numerics, listed).forward();
  return {.lists = std::max(plan.lists, all.lists),
          .activations = std::max(plan.activations, all.activations),
          .together = std::max(plan.together, all.together)};
}

}  // namespace dsv4
