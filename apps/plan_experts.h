// The part of `dsv4 plan` about experts in host memory: its options and what it prints.

#pragma once

#include <nlohmann/json.hpp>

#include "apps/expert_options.h"
#include "dsv4/plan/expert_plan.h"

namespace CLI {
class App;
}  // namespace CLI

namespace dsv4::apps {

void add_plan_experts(CLI::App& command, ExpertOptions& options);

// Lowers the memory of a machine's GPUs to --gpu-memory.
void cap_gpu_memory(const ExpertOptions& options, Machine& machine);

// Call it for options that want one.
ExpertFit expert_fit(const ExpertOptions& options, const MemoryPlan& plan, const Machine& machine);
nlohmann::ordered_json expert_fit_json(const ExpertFit& fit);
void print_expert_fit(const ExpertFit& fit);

}  // namespace dsv4::apps
