// Experts in host memory, planned: what `dsv4 plan` prints of them, and `dsv4 inspect experts
// MODEL|--synthetic flash|pro`, which shows how those of each layer lie in both memories, as the
// engine would place them (plan/expert_plan.h).

#pragma once

#include <nlohmann/json.hpp>

#include "apps/plan_model.h"
#include "dsv4/plan/expert_plan.h"

namespace CLI {
class App;
}  // namespace CLI

namespace dsv4::apps {

void add_plan_experts(CLI::App& command, ExpertOptions& options);

// Call it for options that want one.
ExpertFit expert_fit(const ExpertOptions& options, const MemoryPlan& plan, const Machine& machine);
nlohmann::ordered_json expert_fit_json(const ExpertFit& fit);
void print_expert_fit(const ExpertFit& fit);

// Options of `inspect experts` beside those of `inspect ops --step`.
void add_inspect_experts(CLI::App& command, PlanOptions& options);
void inspect_experts(const PlanOptions& options, bool json);

}  // namespace dsv4::apps
