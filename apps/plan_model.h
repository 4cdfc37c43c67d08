// A model whose memory is planned without loading it, for `dsv4 plan` and `dsv4 inspect experts`.

#pragma once

#include <optional>
#include <string>

#include "apps/expert_options.h"
#include "dsv4/convert/convert_list.h"
#include "dsv4/plan/plan.h"

namespace dsv4::apps {

struct PlanOptions {
  std::string command = "plan";  // for errors
  std::string model, synthetic, experts, dense, recipe, machine = "cpu";
  std::optional<int64_t> context;
  int sequences = 1;
  int64_t batch_tokens = 512;
  std::optional<double> reserve_gib;
  Numerics numerics = Numerics::kOfficial;
  ExpertOptions in_host_memory;
  ExpertsPlacement placement = ExpertsPlacement::kSliced;
  bool mtp = false, dspark = false, json = false;
};

struct PlannedModel {
  std::string title;
  Recipe recipe;
  ConvertList list;
  MemoryPlan plan;
};

// What --mtp and --dspark ask for; kBadInput: both.
DrafterKind wanted_drafter(bool mtp, bool dspark);

// Reads headers, of a folder or at the hub, or takes the list of an official release.
PlannedModel plan_model(const PlanOptions& options);

// Lowers the memory of a GPU to --gpu-memory, and takes --reserve.
void limit_machine(const PlanOptions& options, Machine& machine);

void print_title(const PlannedModel& model);

}  // namespace dsv4::apps
