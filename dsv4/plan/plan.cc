#include "dsv4/plan/plan.h"

#include <algorithm>

#include "dsv4/base/error.h"
#include "dsv4/engine/device_workspace.h"
#include "dsv4/model/schedule.h"

namespace dsv4 {
namespace {

constexpr int64_t kMaxSequences = int64_t{1} << 20;

CacheLimits limits_of(const PlanRequest& request, int64_t context, int64_t sequences) {
  return {.max_tokens = context,
          .max_sequences = static_cast<int>(sequences),
          .max_batch_tokens = std::max(request.batch_tokens, sequences)};
}

// The largest n in [0, most] that fits; what does not fit is followed by nothing that does.
template <class Fits>
int64_t largest(int64_t most, const Fits& fits) {
  int64_t low = 0, high = most;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Room and need of a number of sequences with a context.
struct Balance {
  int64_t room = 0, need = 0;
  bool fits() const { return need <= room; }
};

Balance balance(const MemoryPlan& plan, const Machine& machine, int64_t context,
                int64_t sequences) {
  const PlanRequest& request = plan.request;
  const CacheLimits limits = limits_of(request, context, sequences);
  const Workspace work = plan_workspace(plan.config, request.numerics, limits, request.threads);
  const int64_t cache = plan_cache(plan.config, request.numerics, limits).plan.bytes();
  int64_t kept = machine.reserve_bytes, need = plan.weights.total.bytes + cache;
  if (machine.host) {
    need += work.total();
  } else {
    kept = std::max(kept, plan_device_workspace(plan.config, request.numerics, limits).total());
  }
  return {.room = machine.devices * (machine.device_bytes - kept), .need = need};
}

}  // namespace

MemoryPlan plan_memory(const ModelConfig& config, const ConvertList& weights,
                       const PlanRequest& request) {
  DSV4_CHECK(request.context >= 1 && request.sequences >= 1 && request.batch_tokens >= 1,
             "context={} sequences={} batch_tokens={}", request.context, request.sequences,
             request.batch_tokens);
  if (request.context > config.max_positions)
    fail(ErrorCode::kBadInput, "a context of {} tokens exceeds the model's {} positions",
         request.context, config.max_positions);
  if (request.numerics == Numerics::kOfficial) check_official_numerics(config);
  const CacheLimits limits = limits_of(request, request.context, request.sequences);
  return {.config = config,
          .request = request,
          .weights = summarize(weights),
          .kv_rate = kv_rate(config, request.numerics),
          .sequence = sequence_bytes(config, request.numerics),
          .cache_bytes = plan_cache(config, request.numerics, limits).plan.bytes(),
          .workspace = plan_workspace(config, request.numerics, limits, request.threads),
          .checkpoint_bytes = checkpoint_bytes(config, request.numerics)};
}

Fit fit(const MemoryPlan& plan, const Machine& machine) {
  const PlanRequest& request = plan.request;
  const auto fits = [&](int64_t context, int64_t sequences) {
    return balance(plan, machine, context, sequences).fits();
  };
  const Balance asked = balance(plan, machine, request.context, request.sequences);
  Fit result{.fits = asked.fits(), .room_bytes = asked.room, .need_bytes = asked.need};
  const int64_t positions = plan.config.max_positions;
  result.max_context = largest(positions, [&](int64_t n) { return fits(n, 1); });
  result.max_sequences =
      largest(kMaxSequences, [&](int64_t n) { return fits(request.context, n); });
  result.all_positions = result.max_context == positions;
  return result;
}

}  // namespace dsv4
