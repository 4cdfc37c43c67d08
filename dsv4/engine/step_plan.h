// What all ranks of a model need to run one step: a batch that owns everything it names. Rank 0's
// scheduler makes it; ranks build their lists from it and from nothing else.

#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "dsv4/model/batch.h"
#include "dsv4/ops/op.h"

namespace dsv4 {

class StepPlan {
 public:
  StepPlan(int64_t step, const ForwardBatch& batch) : step_(step), batch_(batch) {
    for (SequenceRun& run : batch_.runs) {
      for (std::span<const int32_t>& pages : run.pages)
        pages = tables_.emplace_back(pages.begin(), pages.end());
    }
  }
  StepPlan(const StepPlan&) = delete;
  StepPlan& operator=(const StepPlan&) = delete;

  int64_t step() const { return step_; }
  const ForwardBatch& batch() const { return batch_; }

 private:
  int64_t step_;
  ForwardBatch batch_;
  std::deque<std::vector<int32_t>> tables_;  // that the runs of the batch point to
};

// Lets every call run. A rank whose calls are observed captures no graph, and neither may the
// others, which observe theirs with this then.
class RunCalls final : public Observer {
 public:
  void observe(const OpCall& call) override { call.run(); }
};

}  // namespace dsv4
