// What all ranks of a model need to run one step, or to draw the drafts of a round: a batch, or a
// chain, that owns the lists it names. Rank 0's scheduler makes it; ranks build their lists from it
// and from nothing else.

#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "dsv4/engine/rank_memories.h"
#include "dsv4/engine/runner.h"
#include "dsv4/model/batch.h"
#include "dsv4/ops/op.h"

namespace dsv4 {

// Page tables of batches.
class OwnedTables {
 public:
  // Lets the batch point to copies of its tables.
  void take(ForwardBatch& batch) {
    for (SequenceRun& run : batch.runs) {
      for (std::span<const int32_t>& pages : run.pages)
        pages = tables_.emplace_back(pages.begin(), pages.end());
    }
  }

 private:
  std::deque<std::vector<int32_t>> tables_;
};

class StepPlan {
 public:
  StepPlan(int64_t step, const ForwardBatch& batch) : step_(step), batch_(batch) {
    tables_.take(batch_);
  }
  StepPlan(const StepPlan&) = delete;
  StepPlan& operator=(const StepPlan&) = delete;

  int64_t step() const { return step_; }
  const ForwardBatch& batch() const { return batch_; }

 private:
  int64_t step_;
  ForwardBatch batch_;
  OwnedTables tables_;
};

class DraftPlan {
 public:
  // move(view): lets a tensor of the given chain, which is not empty, point to the memory of the
  // rank that runs this plan.
  template <class Move>
  DraftPlan(const DraftChain& chain, const Move& move)
      : chain_(chain),
        caches_(chain.caches.begin(), chain.caches.end()),
        params_(chain.sampling.params.begin(), chain.sampling.params.end()),
        steps_(chain.sampling.steps.begin(), chain.sampling.steps.end()),
        terms_(chain.sampling.terms.begin(), chain.sampling.terms.end()),
        term_begin_(chain.sampling.term_begin.begin(), chain.sampling.term_begin.end()),
        mask_(chain.sampling.mask.begin(), chain.sampling.mask.end()) {
    for (ForwardBatch& pass : chain_.passes) tables_.take(pass);
    for (LayerCache& layer : caches_) move_cache(layer, move);
    chain_.caches = caches_;
    DraftViews& buffers = chain_.buffers;
    for (TensorView* view :
         {&buffers.chain[0], &buffers.chain[1], &buffers.logits, &buffers.hidden, &buffers.before})
      if (!view->empty()) move(*view);
    if (!chain_.pending.empty()) move(chain_.pending);
    chain_.sampling = {.params = params_,
                       .steps = steps_,
                       .terms = terms_,
                       .term_begin = term_begin_,
                       .mask = mask_};
  }
  DraftPlan(const DraftPlan&) = delete;
  DraftPlan& operator=(const DraftPlan&) = delete;

  const DraftChain& chain() const { return chain_; }

 private:
  DraftChain chain_;
  OwnedTables tables_;
  std::vector<LayerCache> caches_;
  std::vector<SamplingParams> params_;
  std::vector<uint64_t> steps_;
  std::vector<TokenTerm> terms_;
  std::vector<int32_t> term_begin_;
  std::vector<uint32_t> mask_;
};

// The plans of ranks in this process. [world]
using DraftPlans = std::vector<std::unique_ptr<const DraftPlan>>;
inline std::shared_ptr<const DraftPlans> plans_of_ranks(const DraftChain& chain,
                                                        const RankMemories& memories) {
  auto plans = std::make_shared<DraftPlans>();
  for (int rank = 0; rank < memories.world(); ++rank)
    plans->push_back(std::make_unique<const DraftPlan>(
        chain, [&](auto& view) { view.data = memories.at(rank, view.data); }));
  return plans;
}

// Lets every call run. A rank whose calls are observed captures no graph, and neither may the
// others, which observe theirs with this then.
class RunCalls final : public Observer {
 public:
  void observe(const OpCall& call) override { call.run(); }
};

}  // namespace dsv4
