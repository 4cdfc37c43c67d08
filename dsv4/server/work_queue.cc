#include "dsv4/server/work_queue.h"

#include "dsv4/server/shares.h"

namespace dsv4 {

bool WorkQueue::post(Item item) {
  if (!has_room(item.client, most_, size(), order_.count(item.client), 1)) return false;
  const uint64_t id = next_++;
  order_.push({.id = id, .key = item.client, .prompt_tokens = static_cast<int64_t>(item.bytes) + 1},
              std::chrono::steady_clock::now());
  waiting_[id] = std::move(item);
  run_next();
  return true;
}

double WorkQueue::longest_wait() const {
  return order_.longest_wait(std::chrono::steady_clock::now());
}

void WorkQueue::run_next() {
  while (running_ < at_once_ && !waiting_.empty()) {
    const uint64_t id = *order_.pop(std::chrono::steady_clock::now());
    ++running_;
    threads_.post_worker([this, item = std::move(waiting_.extract(id).mapped())]() mutable {
      item.work();
      threads_.post_io([this, done = std::move(item.done)] {
        --running_;
        run_next();
        done();
      });
    });
  }
}

}  // namespace dsv4
