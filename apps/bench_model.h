// The code that `dsv4 bench decode` and `bench prefill` share: the model to measure, and the cost
// of preparing it.

#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/expert_count.h"
#include "apps/expert_options.h"
#include "apps/synthetic_model.h"
#include "dsv4/engine/executor.h"
#include "dsv4/plan/op_profile.h"
#include "dsv4/plan/probe.h"
#include "dsv4/plan/weight_summary.h"

namespace CLI {
class App;
}  // namespace CLI

namespace dsv4::apps {

struct BenchOptions : SyntheticOptions {
  std::string model, device = "auto";
  Numerics numerics = Numerics::kOfficial;
  bool deterministic = false, ops = false, json = false;
  std::optional<ShardId> shard;  // of this rank alone
  ExpertsPlacement placement = ExpertsPlacement::kSliced;
  DrafterKind drafter = DrafterKind::kNone;  // that the model is made with
  std::vector<ImplChoice> choices;
  ExpertOptions outside;  // experts that stay in host memory
  bool share_copies = false;
};

void add_bench_options(CLI::App& command, BenchOptions& options);

class BenchModel {
 public:
  // Throws before loading weights when they do not fit together with the largest of these caches.
  BenchModel(const BenchOptions& options, const std::vector<CacheLimits>& caches);

  const Model& model() const { return *model_; }
  const Roofs& roofs() const { return roofs_; }
  Context context() const;
  RankOptions ranks() const { return {.alone = options_.shard.has_value()}; }
  // The report before the results: model, device, peaks, seconds of each phase.
  nlohmann::ordered_json header() const;
  // Device memory allocated since before the weights were loaded, and the planned amount.
  nlohmann::ordered_json memory(const CacheLimits& limits) const;
  // Ops of one call on the executor, slowest first, with their share of the roof; empty unless
  // --ops was given.
  template <class Call>
  nlohmann::ordered_json ops(Executor& executor, const Call& call) {
    if (!options_.ops) return nullptr;
    const std::unique_ptr<OpProfile> profile = make_op_profile(model_->device());
    executor.observe(profile.get());
    call();
    executor.observe(nullptr);
    return op_table(*profile);
  }
  // One call, of which the experts that it reads are counted.
  template <class Call>
  ExpertCount count_experts(Executor& executor, const Call& call) {
    ExpertCount count(probe_->memory());
    executor.observe(&count);
    call();
    executor.observe(nullptr);
    return count;
  }
  // Writes `what` and the trace of one call (step_trace.h) to the file and returns it without the
  // single kernels.
  template <class Call>
  nlohmann::ordered_json trace(const std::string& file, nlohmann::ordered_json what,
                               const Call& call) {
    probe_->start_trace();
    call();
    return save_trace(file, std::move(what));
  }
  // Kernels of one call, slowest first; empty unless --ops was given and there is a device.
  template <class Call>
  nlohmann::ordered_json kernels(const Call& call) {
    if (!options_.ops) return nullptr;
    probe_->time_kernels(true);
    call();
    auto times = kernel_table();
    probe_->time_kernels(false);
    return times;
  }

 private:
  nlohmann::ordered_json kernel_table();
  nlohmann::ordered_json save_trace(const std::string& file, nlohmann::ordered_json report);
  nlohmann::ordered_json op_table(OpProfile& profile) const;

  const BenchOptions options_;
  std::optional<Model> model_;
  std::unique_ptr<Probe> probe_;
  Roofs roofs_;
  int64_t free_before_ = 0;
  CodebookCounts codebooks_;
  nlohmann::ordered_json phases_;
};

// Random token ids of the model.
std::vector<int32_t> random_tokens(const Model& model, int64_t n, uint64_t seed);

// "8" or "1,8,32", each from `low` to `high`
std::vector<int64_t> parse_numbers(const char* what, const std::string& text, int64_t high,
                                   int64_t low = 1);

}  // namespace dsv4::apps
