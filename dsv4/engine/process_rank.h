// What rank 0 and the others have in common where each rank is a process: the runner of its own
// part of the model, on the host or on a GPU, whose exchanges reach the other processes.

#pragma once

#include <functional>
#include <memory>

#include "dsv4/comm/rank_processes.h"
#include "dsv4/engine/runner.h"

namespace dsv4 {

class ProcessRank {
 public:
  // All ranks make it at the same time. context.device: of the model, or null
  ProcessRank(const Model& model, const Context& context, const CacheLimits& limits,
              std::chrono::milliseconds limit);

  RankProcesses& group() { return group_; }
  Runner& runner() const { return *runner_; }
  // Runs a step or drafts with the rank's share of the CPUs.
  void run(const std::function<void(Runner&)>& work);
  // Throws RanksStopped when an exchange ended without its values, or another process has ended.
  // On a GPU this is true of the work that has been waited for.
  void check();
  // Throws RanksStopped when exchanges of a GPU ended; asks no socket.
  void check_exchanges();

 private:
  RankProcesses& group_;
  DeviceRanks* exchanges_ = nullptr;  // of a GPU
  const int threads_;
  std::unique_ptr<Runner> runner_;
};

}  // namespace dsv4
