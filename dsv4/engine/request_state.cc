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

// Whatever its priority, a request stands before the others after so many of either.
constexpr int kMostPreemptions = 3;
constexpr int64_t kMostOvertaken = 32;

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
  const auto place = [](const RequestState& one) {
    const bool kept = one.stats.preemptions >= kMostPreemptions || one.overtaken >= kMostOvertaken;
    return std::tuple(!kept, -one.params.priority, one.id);
  };
  return place(*this) < place(other);
}

void RequestState::advance(int32_t token) {
  try {
    if (params.constraint != nullptr) state = params.constraint->advance(state, token);
  } catch (const Error&) {
    blocked = true;
  }
}

void RequestState::begin_rows() {
  try {
    round.rows = {{.state = state, .restricted = params.constraint->restricts(state)}};
  } catch (const Error&) {
    round.rows.clear();  // the step reports it
  }
}

bool RequestState::add_row(int32_t draft) {
  try {
    const TokenConstraint::State next = params.constraint->advance(round.rows.back().state, draft);
    if (next == TokenConstraint::kEnded) return false;
    round.rows.push_back({.state = next, .restricted = params.constraint->restricts(next)});
    return true;
  } catch (const Error&) {
    return false;
  }
}

bool RequestState::make_mask(size_t row, size_t words) {
  Round::Row& made = round.rows[row];
  if (!made.restricted || !made.mask.empty()) return true;
  made.mask.resize(words);
  ++round.masks;
  try {
    row == 0 ? params.constraint->mask(made.state, made.mask)
             : params.constraint->mask_ahead(made.state, made.mask);
    return true;
  } catch (const Error&) {
    made.mask.clear();
    return false;
  }
}

void RequestState::restrict(SampleLists& lists, size_t row) {
  if (params.constraint != nullptr) {
    if (round.rows.empty()) begin_rows();
    const bool restricted = row < round.rows.size() && round.rows[row].restricted;
    if (restricted && make_mask(row, lists.mask().size())) {
      std::ranges::copy(round.rows[row].mask, lists.mask().begin());
    } else if (restricted || row >= round.rows.size()) {
      fail_row(row);
    }
  }
  if (generated + static_cast<int64_t>(row) < params.min_new_tokens)
    forbid(params.stop, lists.mask());
}

// What is sampled in this row is dropped.
void RequestState::fail_row(size_t row) {
  if (row == 0) blocked = true;
  round.accepted_rows = std::min(round.accepted_rows, row);
}

}  // namespace dsv4
