#include "dsv4/plan/expert_plan.h"

#include <algorithm>

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"

namespace dsv4 {
namespace {

std::string gib(int64_t bytes) {
  return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / static_cast<double>(kGiB));
}

}  // namespace

ExpertFit fit_experts(const MemoryPlan& plan, const Machine& machine,
                      const ExpertRequest& request) {
  if (machine.host || machine.devices != 1)
    fail(ErrorCode::kBadInput, "experts in host memory are planned for one GPU, not for {}",
         machine.name);
  const auto part = plan.weights.parts.find("experts");
  ExpertFit result{.experts = plan.config.num_layers * plan.config.num_experts};
  const int64_t all = part == plan.weights.parts.end() ? 0 : part->second.bytes;
  DSV4_CHECK(all > 0 && result.experts > 0, "{} bytes of {} experts", all, result.experts);
  result.expert_bytes = ceil_div(all, result.experts);
  result.token_bytes = plan.config.num_layers * plan.config.experts_per_token * result.expert_bytes;
  const Fit whole = fit(plan, machine);
  const bool holds_all = whole.fits && request.gpu_bytes.value_or(all) >= all;
  const int64_t others =
      whole.need_bytes - all + (holds_all ? 0 : kExpertsInTransit * result.expert_bytes);
  result.room_bytes = whole.room_bytes - others;
  if (result.room_bytes < 0)
    fail(ErrorCode::kBadInput,
         "{} has room for {}: dense weights, the cache and {} experts in transit take {}",
         machine.name, gib(whole.room_bytes), kExpertsInTransit, gib(others));
  const int64_t given = request.gpu_bytes.value_or(result.room_bytes);
  if (given > result.room_bytes)
    fail(ErrorCode::kBadInput, "{} has room for {} of experts, {} are wanted", machine.name,
         gib(result.room_bytes), gib(given));
  result.resident = std::min(given / result.expert_bytes, result.experts);
  const int64_t copies = std::min(request.host_bytes / result.expert_bytes, result.experts);
  result.fixed = result.resident == result.experts ? result.experts : result.experts - copies;
  if (result.fixed > result.resident)
    fail(ErrorCode::kBadInput,
         "{} of host memory hold {} of {} experts, and {} holds {}: fewer bits (--experts), more "
         "host memory or a larger GPU is needed",
         gib(request.host_bytes), copies, result.experts, machine.name, result.resident);
  return result;
}

}  // namespace dsv4
