#include "dsv4/engine/request_state.h"

#include <algorithm>
#include <tuple>

#include "dsv4/base/error.h"

namespace dsv4 {

const char* name(Finish finish) {
  switch (finish) {
    case Finish::kStop:
      return "stop";
    case Finish::kLength:
      return "length";
    case Finish::kCancelled:
      return "cancelled";
    case Finish::kConstraintFailed:
      return "blocked";
  }
  return "unknown";
}

namespace {

// Leaves the mask as it is where it allows nothing else.
void forbid(std::span<const int32_t> ids, std::span<uint32_t> mask) {
  std::vector<uint32_t> left(mask.begin(), mask.end());
  for (const int32_t id : ids) {
    if (id >= 0 && static_cast<size_t>(id) / 32 < left.size())
      left[static_cast<size_t>(id) / 32] &= ~(uint32_t{1} << (id % 32));
  }
  const bool any = std::ranges::any_of(left, [](uint32_t word) { return word != 0; });
  if (any) std::ranges::copy(left, mask.begin());
}

}  // namespace

bool RequestState::before(const RequestState& other) const {
  constexpr int kMostPreemptions = 3;
  const bool kept = stats.preemptions >= kMostPreemptions,
             other_kept = other.stats.preemptions >= kMostPreemptions;
  return std::tuple(!kept, -params.priority, id) <
         std::tuple(!other_kept, -other.params.priority, other.id);
}

void RequestState::advance(int32_t token) {
  try {
    if (params.constraint != nullptr) state = params.constraint->advance(state, token);
  } catch (const Error&) {
    blocked = true;
  }
}

bool RequestState::restrict(SampleLists& lists) {
  bool masked = false;
  try {
    masked = params.constraint != nullptr && params.constraint->restricts(state);
    if (masked) params.constraint->mask(state, lists.mask());
  } catch (const Error&) {
    blocked = true;  // the token that is sampled now is dropped
    std::ranges::fill(lists.mask(), ~uint32_t{0});
  }
  if (generated < params.min_new_tokens) forbid(params.stop, lists.mask());
  return masked;
}

}  // namespace dsv4
