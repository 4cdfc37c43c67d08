// What steps did with experts in host memory, for the reports of run and bench
// (docs/experts-in-host-memory.md).

#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "dsv4/engine/expert_stats.h"

namespace dsv4 {
class ModelShard;
using Model = ModelShard;
}  // namespace dsv4

namespace dsv4::apps {

// Since the start; empty where no experts are in host memory. Waits for the device.
ExpertStats expert_stats(const Model& model);

// What steps did since `before`; null where no experts are in host memory.
nlohmann::ordered_json expert_report(const Model& model, const ExpertStats& before = {});
// "92.1 % of chosen experts in GPU memory, 1.3 GiB over the link while decoding and 13.0 GiB in
// prompts"; empty where all are
std::string expert_text(const Model& model);

// Adds the report to the row of a benchmark whose steps, each of so many seconds, came after
// `before`, with what a step brings over the link.
void add_expert_report(const Model& model, const ExpertStats& before, int64_t steps,
                       double step_seconds, nlohmann::ordered_json& row);
// A line for such a row; empty where it has no report.
std::string expert_row_text(const nlohmann::ordered_json& row);

}  // namespace dsv4::apps
