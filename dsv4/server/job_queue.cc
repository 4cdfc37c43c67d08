#include "dsv4/server/job_queue.h"

#include <algorithm>
#include <tuple>

namespace dsv4 {
namespace {

constexpr std::chrono::seconds kAging{30};
constexpr int64_t kAnswerCost = 4;     // of a token, in tokens of a prompt
constexpr int64_t kMostAnswer = 2048;  // few answers are as long as they may be

}  // namespace

int64_t JobQueue::class_of(const Waiting& one, Time now) {
  return one.job.priority + (now - one.since) / kAging;
}

void JobQueue::push(const Job& job, Time now) {
  const int64_t answer = std::min(job.answer_tokens, kMostAnswer);
  double& finish = finish_[job.key];
  const double start = std::max(virtual_time_, finish);
  finish = start + static_cast<double>(job.prompt_tokens + kAnswerCost * answer);
  waiting_.push_back({job, now, start});
}

bool JobQueue::may_begin(const Job& job, const Places& places) const {
  const auto taken = places.taken.find(job.request);
  if (job.request.empty() || places.count < 2 || taken == places.taken.end()) return true;
  const bool others = std::ranges::any_of(
      waiting_, [&](const Waiting& one) { return one.job.request != job.request; });
  return taken->second < (others ? (places.count + 1) / 2 : places.count - 1);
}

std::optional<uint64_t> JobQueue::pop(Time now, const Places& places) {
  // The first one of equals is the oldest.
  const auto rank = [&](const Waiting& one) { return std::tuple(-class_of(one, now), one.start); };
  auto next = waiting_.end();
  for (auto one = waiting_.begin(); one != waiting_.end(); ++one) {
    if (next != waiting_.end() && rank(*next) <= rank(*one)) continue;
    if (may_begin(one->job, places)) next = one;
  }
  if (next == waiting_.end()) return std::nullopt;
  const uint64_t id = next->job.id;
  virtual_time_ = std::max(virtual_time_, next->start);
  waiting_.erase(next);
  // Keys that have nothing to wait for any more are as new ones.
  std::erase_if(finish_, [&](const auto& key) { return key.second <= virtual_time_; });
  return id;
}

size_t JobQueue::count(const std::string& key) const {
  return static_cast<size_t>(
      std::ranges::count_if(waiting_, [&](const Waiting& one) { return one.job.key == key; }));
}

double JobQueue::longest_wait(Time now) const {
  // In order of arrival.
  return waiting_.empty() ? 0 : std::chrono::duration<double>(now - waiting_.front().since).count();
}

bool JobQueue::erase(uint64_t id) {
  return std::erase_if(waiting_, [&](const Waiting& one) { return one.job.id == id; }) > 0;
}

}  // namespace dsv4
