#include "apps/expert_count.h"

#include <set>
#include <vector>

#include "dsv4/ops/parts/experts/experts.h"

namespace dsv4::apps {

void ExpertCount::observe(const OpCall& call) {
  call.run();
  const ExpertsArgs* args = call.args_of(experts);
  if (args == nullptr || args->experts.empty()) return;
  const int64_t slots = args->experts.dim(1);
  std::vector<int32_t> row(static_cast<size_t>(slots));
  std::set<int32_t> chosen;
  for (int64_t t = 0; t < args->experts.dim(0); ++t) {
    memory_.download(reinterpret_cast<std::byte*>(row.data()),
                     reinterpret_cast<const std::byte*>(args->experts.row<int32_t>(t)),
                     slots * item_bytes(DType::kI32));
    chosen.insert(row.begin(), row.end());
  }
  ++layers_;
  experts_ += static_cast<int64_t>(chosen.size());
  unexpected_bytes_ -= expected_cost(*args).weight_bytes;
  for (const int32_t e : chosen) {
    unexpected_bytes_ += static_cast<double>(args->stack.expert_bytes(e));
  }
}

double ExpertCount::distinct() const {
  return layers_ == 0 ? 0 : static_cast<double>(experts_) / static_cast<double>(layers_);
}

}  // namespace dsv4::apps
