#include "dsv4/plan/expert_plan.h"

#include <algorithm>
#include <numeric>

#include "dsv4/base/error.h"
#include "dsv4/base/size_text.h"

namespace dsv4 {
namespace {

void check_request(const MemoryPlan& plan, const Machine& machine) {
  if (machine.host || machine.devices != 1)
    fail(ErrorCode::kBadInput, "experts in host memory are planned for one GPU, not for {}",
         machine.name);
  DSV4_CHECK(std::ssize(plan.expert_bytes) == plan.config.num_layers, "{} layers of {}",
             plan.expert_bytes.size(), plan.config.num_layers);
  if (std::ranges::count(plan.expert_bytes, 0) > 0)
    fail(ErrorCode::kUnsupported,
         "experts in host memory are kernel images, and those of {} layers have none: they are in "
         "MXFP4, NVFP4 or 2 to 5 bits (--experts)",
         std::ranges::count(plan.expert_bytes, 0));
}

}  // namespace

int64_t ExpertFit::all_bytes() const {
  return places.experts *
         std::reduce(places.place_bytes.begin(), places.place_bytes.end(), int64_t{0});
}

int64_t ExpertFit::token_bytes() const {
  return all_bytes() / places.experts * chosen;
}

double ExpertFit::link_bytes() const {
  double bytes = 0;
  for (int64_t l = 0; l < places.layers(); ++l) {
    const double outside =
        1 - static_cast<double>(places.kept(l)) / static_cast<double>(places.experts);
    bytes += outside * static_cast<double>(chosen * places.place_bytes[static_cast<size_t>(l)]);
  }
  return bytes;
}

ExpertFit fit_experts(const MemoryPlan& plan, const Machine& machine,
                      const ExpertRequest& request) {
  check_request(plan, machine);
  const auto part = plan.weights.parts.find("experts");
  DSV4_CHECK(part != plan.weights.parts.end(), "no weight of an expert among {} parts",
             plan.weights.parts.size());
  const Fit whole = fit(plan, machine);
  ExpertFit result;
  result.gpu_room = whole.room_bytes, result.host_room = request.host_bytes;
  result.dense_bytes = whole.need_bytes - part->second.bytes;
  const int64_t room = result.gpu_room - result.dense_bytes;
  if (room <= 0)
    fail(ErrorCode::kResource, "{} has room for {}: dense weights and the cache take {}",
         machine.name, size_text(result.gpu_room, 2), size_text(result.dense_bytes, 2));
  const int64_t given = request.gpu_bytes.value_or(room);
  if (given > room)
    fail(ErrorCode::kResource, "{} has room for {} of experts, {} are wanted", machine.name,
         size_text(room, 2), size_text(given, 2));
  result.places =
      plan_places(plan.expert_bytes, plan.config.num_experts, given, request.host_bytes);
  result.chosen = plan.config.experts_per_token;
  return result;
}

}  // namespace dsv4
