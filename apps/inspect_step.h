// dsv4 inspect ops --step flash|pro: which implementation takes each call of a step, and why the
// others do not (plan/step_table.h).

#pragma once

#include <string>
#include <vector>

#include "dsv4/ops/op.h"

namespace CLI {
class App;
}  // namespace CLI

namespace dsv4::apps {

struct InspectStepOptions {
  std::string step, experts, dense, recipe, tokens = "1,8,32,4096", gpu;
  int64_t context = 4096;
  Numerics numerics = Numerics::kOfficial;
  bool deterministic = false, mtp = false, dspark = false;
  std::vector<ImplChoice> choices;
};

void add_step_options(CLI::App& command, InspectStepOptions& options);
void inspect_step(const InspectStepOptions& options, bool json);

}  // namespace dsv4::apps
