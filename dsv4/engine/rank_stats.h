// What each rank of a model has done so far, and the memory that it has. A whole model is one rank.

#pragma once

#include <chrono>
#include <cstdint>

#include "dsv4/engine/device_memory.h"

namespace dsv4 {

struct RankStats {
  int rank = 0;
  int64_t steps = 0;
  double step_seconds = 0;     // of its thread, drafts included; on a GPU steps are enqueued then
  double wait_seconds = 0;     // in exchanges, mostly for others: of the thread, or of the GPU
  int64_t received_bytes = 0;  // of other ranks' values
  int64_t weight_bytes = 0, cache_bytes = 0, workspace_bytes = 0;
  MemoryUse device_memory;  // zeros on the host
};

// Counts a step and its time, or the time of drafts, which belong to the next step.
class StepTimer {
 public:
  explicit StepTimer(RankStats& stats, int64_t steps = 1) : stats_(stats), steps_(steps) {}
  ~StepTimer() {
    stats_.steps += steps_;
    stats_.step_seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }
  StepTimer(const StepTimer&) = delete;
  StepTimer& operator=(const StepTimer&) = delete;

 private:
  RankStats& stats_;
  const int64_t steps_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace dsv4
