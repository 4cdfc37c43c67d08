#include "dsv4/comm/turns.h"

#include "dsv4/base/error.h"
#include "dsv4/comm/threads.h"

namespace dsv4 {

void Turns::wait(std::unique_lock<std::mutex>& lock, int rank) {
  changed_.wait_for(lock, limit_, [&] { return turn_ == rank || !why_.empty(); });
  if (why_.empty() && turn_ != rank) {
    why_ = fmt::format("no answer from rank {} for {} s (enqueueing)", turn_,
                       static_cast<double>(limit_.count()) / 1000);
    changed_.notify_all();
  }
  if (!why_.empty()) throw RanksStopped(why_);
}

void Turns::begin(int rank) {
  std::unique_lock lock(mutex_);
  wait(lock, rank);
}

void Turns::pass(int rank) {
  std::unique_lock lock(mutex_);
  DSV4_CHECK(turn_ == rank || !why_.empty(), "rank {} in the turn of rank {}", rank, turn_);
  turn_ = (turn_ + 1) % world_;
  changed_.notify_all();
  wait(lock, rank);
}

void Turns::end(int rank) {
  const std::lock_guard lock(mutex_);
  if (!why_.empty()) return;
  DSV4_CHECK(turn_ == rank, "rank {} in the turn of rank {}", rank, turn_);
  turn_ = (turn_ + 1) % world_;
  changed_.notify_all();
}

void Turns::stop() {
  const std::lock_guard lock(mutex_);
  if (why_.empty()) why_ = "the ranks were stopped";
  changed_.notify_all();
}

}  // namespace dsv4
