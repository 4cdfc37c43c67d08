#include "dsv4/engine/process_rank.h"

#include <omp.h>

#include <algorithm>

#include "dsv4/comm/threads.h"
#include "dsv4/engine/host_runner.h"
#if DSV4_CUDA
#include "dsv4/comm/device_ranks.h"
#endif

namespace dsv4 {

ProcessRank::ProcessRank(const Model& model, const Context& context, const CacheLimits& limits,
                         std::chrono::milliseconds limit)
    : group_(*model.processes()), threads_(std::max(1, omp_get_max_threads() / model.id().world)) {
  group_.set_limit(limit);
#if DSV4_CUDA
  if (context.device != nullptr) {
    exchanges_ = &device_exchanges(group_, *context.device, limit);
    runner_ = make_device_runner(model, context, limits, exchanges_);
    return;
  }
#endif
  if (exchange_kind() == ExchangeKind::kNccl)
    fail(ErrorCode::kBadInput, "--exchange nccl is for ranks that are processes on {}", "GPUs");
  auto host = std::make_unique<HostRunner>(model, context, limits);
  host->join(group_.exchanges());
  runner_ = std::move(host);
}

void ProcessRank::run(const std::function<void(Runner&)>& work) {
  struct Threads {
    explicit Threads(int own) { omp_set_num_threads(own); }
    ~Threads() { omp_set_num_threads(before); }
    const int before = omp_get_max_threads();
  };
  const Threads own(threads_);
  work(*runner_);
}

void ProcessRank::check_exchanges() {
#if DSV4_CUDA
  if (exchanges_ != nullptr) exchanges_->check();
#endif
}

void ProcessRank::check() {
  try {
    check_exchanges();
  } catch (const RanksStopped& error) {
    throw RanksStopped(group_.reason(error.what()));
  }
  group_.check();
}

}  // namespace dsv4
