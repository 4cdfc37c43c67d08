#include "dsv4/server/work_queue.h"

#include "dsv4/server/shares.h"

namespace dsv4 {
namespace {

constexpr size_t kLarge = size_t{1} << 20;  // bytes
const std::string kLargeBodies = "large";   // as one request, which leaves a place

}  // namespace

bool WorkQueue::post(Item item) {
  if (!has_room(item.client, most_, size(), order_.count(item.client), 1)) return false;
  const uint64_t id = next_++;
  order_.push({.id = id,
               .key = item.client,
               .request = item.bytes >= kLarge ? kLargeBodies : "",
               .prompt_tokens = static_cast<int64_t>(item.bytes) + 1},
              std::chrono::steady_clock::now());
  waiting_[id] = std::move(item);
  run_next();
  return true;
}

double WorkQueue::longest_wait() const {
  return order_.longest_wait(std::chrono::steady_clock::now());
}

void WorkQueue::run_next() {
  while (running_ < at_once_) {
    const auto id = order_.pop(std::chrono::steady_clock::now(),
                               {.count = at_once_, .taken = {{kLargeBodies, large_}}});
    if (!id) return;
    Item item = std::move(waiting_.extract(*id).mapped());
    const bool large = item.bytes >= kLarge;
    ++running_;
    large_ += large;
    threads_.post_worker([this, large, item = std::move(item)]() mutable {
      item.work();
      threads_.post_io([this, large, done = std::move(item.done)] {
        --running_;
        large_ -= large;
        run_next();
        done();
      });
    });
  }
}

}  // namespace dsv4
