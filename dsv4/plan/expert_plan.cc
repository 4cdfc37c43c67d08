#include "dsv4/plan/expert_plan.h"

#include "dsv4/base/bits.h"
#include "dsv4/base/error.h"
#include "dsv4/engine/expert_places.h"

namespace dsv4 {
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
  const Fit whole = fit(plan, machine);
  const int64_t others = whole.need_bytes - all;
  result.room_bytes = whole.room_bytes - others;
  if (result.room_bytes <= 0)
    fail(ErrorCode::kResource, "{} has room for {}: dense weights and the cache take {}",
         machine.name, gib_text(whole.room_bytes), gib_text(others));
  const int64_t given = request.gpu_bytes.value_or(result.room_bytes);
  if (given > result.room_bytes)
    fail(ErrorCode::kResource, "{} has room for {} of experts, {} are wanted", machine.name,
         gib_text(result.room_bytes), gib_text(given));
  const ExpertPlaces places = plan_places(
      std::vector<int64_t>(static_cast<size_t>(plan.config.num_layers), result.expert_bytes),
      plan.config.num_experts, given, request.host_bytes);
  result.expert_bytes = places.place_bytes.front();
  result.token_bytes = plan.config.num_layers * plan.config.experts_per_token * result.expert_bytes;
  result.resident = places.resident(), result.fixed = places.all() - places.homes();
  result.transient = places.transient();
  return result;
}

}  // namespace dsv4
